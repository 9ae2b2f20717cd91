# SPDX-License-Identifier: Apache-2.0
"""Copies and restores a custom loop's ``state``, apart from weights and optimizer states.

Changes of an evaluation at an epoch's end are undone before a stop, as the resumed run repeats the evaluation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict, cast

from torch import nn
from torch.utils.data import DataLoader

from lightning_sagemaker._compat.fabric import inner_loader, original_module, wrapped_module
from lightning_sagemaker._compat.param_groups import group_options, set_group_options
from lightning_sagemaker.checkpoint.generators import generator_state, is_generator, restore_generator
from lightning_sagemaker.checkpoint.metric_state import entries_of, metrics_in, restore_entries
from lightning_sagemaker.checkpoint.module_flags import module_flags, restore_module_flags
from lightning_sagemaker.checkpoint.module_walk import named_modules
from lightning_sagemaker.checkpoint.plain_values import filled
from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state
from lightning_sagemaker.checkpoint.stateful import Stateful, is_stateful
from lightning_sagemaker.checkpoint.static_view import answers

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torchmetrics import Metric

    from lightning_sagemaker._types import StateDict
    from lightning_sagemaker.checkpoint.metric_state import MetricEntry
    from lightning_sagemaker.checkpoint.random_state import RandomState


Flags = dict[str, dict[str, list[str]]]
"""Name of a module in ``state`` -> names of its parts that are frozen, or in evaluation mode."""
Groups = dict[str, list[dict[str, object]]]
"""Name of an optimizer in ``state`` -> options of each of its groups."""


class Values(TypedDict):
    """Random states, values and schedulers, and the settings of optimizers' groups; optionally metrics and flags."""

    random: RandomState
    values: StateDict
    groups: Groups
    metrics: dict[str, MetricEntry]
    flags: Flags


def values_of(state: StateDict, modules: bool) -> Values:
    """Copies of everything that changes, apart from weights and optimizer states.

    Args:
        state: The user's objects.
        modules: Whether to include the states of metrics, and flags of modules.

    """
    return {
        "random": random_state(),
        "values": {name: _state_of(value) for name, value in state.items() if is_small(value) and not is_loader(value)},
        "groups": group_settings(state),
        "metrics": entries_of(loop_metrics(state)) if modules else {},
        "flags": loop_flags(state) if modules else {},
    }


def put_values(state: StateDict, values: Values) -> None:
    """Restore the result of :func:`values_of`."""
    restore_random_state(values["random"])
    for name, value in values["values"].items():
        owner = state[name]
        if is_generator(owner):
            restore_generator(owner, value)
        elif is_stateful(owner):
            owner.load_state_dict(copy.deepcopy(cast("StateDict", value)))
        else:
            state[name] = filled(state[name], copy.deepcopy(value))  # the script may refer to its container
    put_group_settings(state, values["groups"])
    restore_entries(loop_metrics(state), values["metrics"])
    restore_loop_flags(state, values["flags"])


def group_settings(state: StateDict) -> Groups:
    """Options of the groups of each optimizer in ``state``, which schedulers change."""
    optimizers = {name: cast("Optimizer", value) for name, value in state.items() if answers(value, "param_groups")}
    return {name: copy.deepcopy(group_options(one.param_groups)) for name, one in optimizers.items()}


def put_group_settings(state: StateDict, settings: Groups) -> None:
    """Restore :func:`group_settings`."""
    for name, groups in settings.items():
        set_group_options(getattr(state[name], "param_groups", ()), copy.deepcopy(groups))


@contextmanager
def as_with(state: StateDict, values: Values) -> Iterator[None]:
    """Context in which the state has these values; afterwards the previous objects, which the script may refer to."""
    now, objects = values_of(state, modules=True), dict(state)
    put_values(state, values)
    try:
        yield
    finally:
        put_values(state, now)
        state.update(objects)


def loop_metrics(state: StateDict) -> dict[str, Metric]:
    """Metrics of torchmetrics in ``state``, and within its modules: their ``state_dict`` is empty."""
    return {
        f"{name}.{path}": metric
        for name, module in _modules(state).items()
        for path, metric in metrics_in(named_modules(module))
    }


def loop_flags(state: StateDict) -> Flags:
    """Flags of the modules, such as those of frozen layers, which may depend on the epoch."""
    return {name: module_flags(named_modules(one), one.parameters()) for name, one in _modules(state).items()}


def restore_loop_flags(state: StateDict, flags: Flags) -> None:
    """Restore :func:`loop_flags`."""
    for name, module in _modules(state).items():
        if name in flags:
            restore_module_flags(module, flags[name])
            for outer in filter(None, (state[name], wrapped_module(state[name]))):
                vars(outer)["training"] = module.training


def loop_generators(state: StateDict) -> StateDict:
    """The states of generators in ``state``, which are each rank's own."""
    return {name: generator_state(value) for name, value in state.items() if is_generator(value)}


def restore_loop_generators(state: StateDict, ranks: list[StateDict], rank: int) -> None:
    """Restore :func:`loop_generators`.

    Args:
        state: The user's objects, whose generators have rank zero's states.
        ranks: States of each rank that has saved.
        rank: Rank of this process.

    """
    for name, state_of_one in (ranks[rank] if rank < len(ranks) else {}).items():
        if is_generator(owner := state.get(name)):
            restore_generator(owner, state_of_one)


def is_small(value: object) -> bool:
    """Whether a value is neither a module nor an optimizer, which do not change after an epoch's last batch."""
    return not isinstance(value, nn.Module) and not answers(value, "param_groups")


def is_loader(value: object) -> bool:
    """Whether a value is a ``DataLoader``: the loop itself keeps the position of one that it iterates over."""
    return isinstance(inner_loader(value), DataLoader)


def _modules(state: StateDict) -> dict[str, nn.Module]:
    return {name: original_module(value) for name, value in state.items() if isinstance(value, nn.Module)}


def _state_of(value: object) -> object:
    if is_generator(value):
        return generator_state(value)
    return copy.deepcopy(cast("Stateful", value).state_dict() if answers(value, "state_dict") else value)
