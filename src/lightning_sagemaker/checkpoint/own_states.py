# SPDX-License-Identifier: Apache-2.0
"""Objects with a ``state_dict`` in a script's attributes, such as a scheduler or a scaler that it steps itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, Sampler

from lightning_sagemaker._lightning import Callback
from lightning_sagemaker.checkpoint.plain_values import EXACT, KEPT, Values, is_sendable
from lightning_sagemaker.checkpoint.records import is_library
from lightning_sagemaker.checkpoint.stateful import Stateful, is_stateful
from lightning_sagemaker.checkpoint.static_view import in_class
from lightning_sagemaker.checkpoint.stored_values import NotStored, is_large, loaded, stored

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer

OBJECTS = "state_dicts"
"""Key of these states among the attributes of a rank."""
_MOST = 100
"""Maximum entries of a container that is searched."""
_TORCHS = (LRScheduler, GradScaler)
_OTHERS = (nn.Module, torch.optim.Optimizer, Dataset, Sampler, Callback)
"""Classes with a ``state_dict`` that is restored elsewhere, or too large."""


def states_of(trainer: Trainer, owners: Mapping[str, object], report: Callable[[str, NotStored], None]) -> Values:
    """The objects' states by name, in a form that a checkpoint can hold.

    Args:
        trainer: The Trainer, which restores its own schedulers itself.
        owners: Name -> object whose attributes are searched.
        report: Called with the name of an object whose state cannot be stored, and why.

    """
    found: Values = {}
    for name, one in _objects(trainer, owners):
        try:
            found[name] = _state(one)
        except NotStored as error:
            report(name, error)
    return found


def load_states(trainer: Trainer, owners: Mapping[str, object], states: Values) -> None:
    """Restore the result of :func:`states_of`; objects that no longer exist are skipped."""
    device = trainer.strategy.root_device
    for name, one in _objects(trainer, owners):
        if name in states:
            state = loaded(states[name], device)
            assert isinstance(state, dict)
            one.load_state_dict(state)


def _state(one: Stateful) -> object:
    try:
        state = one.state_dict()
    except Exception as error:  # of code that a training without AutoResume may never call
        raise NotStored(f"has a state_dict that fails ({type(error).__name__}: {error})") from error
    # Tensors are counted before they are copied.
    if is_large(_flat(state)):
        raise NotStored("has a state_dict that is large")
    if type(state) is not dict or not is_sendable(state):
        raise NotStored("has a state_dict with more than plain values and tensors")
    return stored(state)


def _flat(value: object) -> list[object]:
    if isinstance(value, dict):
        return [_flat(entry) for entry in value.values()]
    return [value]


def _objects(trainer: Trainer, owners: Mapping[str, object]) -> Iterator[tuple[str, Stateful]]:
    seen = {id(config.scheduler) for config in trainer.lr_scheduler_configs}
    for owner, holder in owners.items():
        for key, value in [*vars(holder).items()]:
            if key not in KEPT and type(value) not in EXACT:
                for name, one in _entries(f"{owner}.{key}", value):
                    if id(one) not in seen and is_stateful(one) and _is_kept(one):
                        seen.add(id(one))
                        yield name, one


def _entries(name: str, value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict) and len(value) <= _MOST:
        return [(f"{name}.{key}", entry) for key, entry in value.items()]
    if isinstance(value, (list, tuple)) and len(value) <= _MOST:
        return [(f"{name}.{number}", entry) for number, entry in enumerate(value)]
    return [(name, value)]


def _is_kept(one: object) -> bool:
    """Whether an object's state is saved; not for loaders, whose positions are saved elsewhere."""
    if isinstance(one, type):  # such as the class of an optimizer that is made later
        return False
    return isinstance(one, _TORCHS) or not (
        is_library(type(one)) or isinstance(one, _OTHERS) or in_class(type(one), "__iter__")
    )
