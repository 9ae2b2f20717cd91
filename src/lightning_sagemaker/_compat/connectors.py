# SPDX-License-Identifier: Apache-2.0
"""State of a Trainer and its callbacks that Lightning does not write into a checkpoint."""

from __future__ import annotations

import pickle
import zlib
from typing import TYPE_CHECKING, TypedDict, TypeVar, cast

import torch
import torch.distributed as dist
from typing_extensions import NotRequired

from lightning_sagemaker._compat.loops import current_events
from lightning_sagemaker._compat.reloads import Reloads, reloads_of
from lightning_sagemaker._compat.seen_batches import restore_seen_batches, seen_batches
from lightning_sagemaker._compat.trainer import callbacks_of

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from lightning_sagemaker._types import StateDict, Trainer


T = TypeVar("T")

_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_UNSAVED = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation", "current_score")
"""Attributes of ``ModelCheckpoint``: its guard against saving a step twice, and state that it writes but does not read."""

_SMALL = 1024
"""Maximum elements of a tensor that is copied."""
_SYNCS = "require_forward_param_sync"
"""Attribute of DDP: whether its next forward pass, even in a validation, broadcasts rank zero's buffers."""


class TrainerMemory(TypedDict):
    """The result of :func:`trainer_memory`."""

    logged: dict[str, dict[str, torch.Tensor]]
    first_loop_iter: bool | None
    current_fx: str | None
    should_stop: bool
    syncs_buffers: bool | None
    plateaus: list[tuple[StateDict, list[object]]]
    callbacks: dict[str, StateDict]
    reloads: NotRequired[Reloads]
    seen_batches: NotRequired[dict[int, int]]
    schedules_due: NotRequired[list[str]]
    """This entry and the previous ones are missing in checkpoints of older versions."""


def trainer_memory(trainer: Trainer) -> TrainerMemory:
    """Logged values that callbacks and schedulers read, ``should_stop``, and internal state of checkpoint callbacks."""
    connector = trainer._logger_connector
    return {
        "logged": {name: {key: _plain(value) for key, value in getattr(connector, name).items()} for name in _METRICS},
        "first_loop_iter": connector._first_loop_iter,
        "current_fx": connector._current_fx,
        "should_stop": bool(trainer.should_stop),
        "syncs_buffers": getattr(trainer.strategy.model, _SYNCS, None),
        "plateaus": [
            (plain_copy(one.state_dict()), [group["lr"] for group in groups]) for one, groups in _plateaus(trainer)
        ],
        "callbacks": {
            callback.state_key: {name: _kept(getattr(callback, name)) for name in _UNSAVED if hasattr(callback, name)}
            for callback in trainer.checkpoint_callbacks
        },
        "reloads": reloads_of(trainer),
        "seen_batches": seen_batches(trainer),
        "schedules_due": list(getattr(current_events(trainer), "schedules_due", [])),
    }


def restore_trainer_memory(trainer: Trainer, memory: TrainerMemory) -> None:
    """Set what :func:`trainer_memory` gave; a stop that the hooks of the start have requested stays."""
    connector, device = trainer._logger_connector, trainer.strategy.root_device
    for name in _METRICS:
        values = {key: value.to(device) for key, value in memory["logged"][name].items()}
        getattr(connector, name).update(values)
    connector._first_loop_iter = memory["first_loop_iter"]
    connector._current_fx = memory["current_fx"]
    trainer.should_stop = trainer.should_stop or memory["should_stop"]
    restore_seen_batches(trainer, memory.get("seen_batches", {}))
    if (events := current_events(trainer)) is not None:
        events.schedules_due = memory.get("schedules_due", [])
    if memory["syncs_buffers"] is not None and hasattr(trainer.strategy.model, _SYNCS):
        setattr(trainer.strategy.model, _SYNCS, memory["syncs_buffers"])
    for (schedule, groups), (state, rates) in zip(_plateaus(trainer), memory["plateaus"], strict=False):
        schedule.load_state_dict(state)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
    for callback in trainer.checkpoint_callbacks:
        for name, value in memory["callbacks"].get(callback.state_key, {}).items():
            setattr(callback, name, value)


def _plateaus(trainer: Trainer) -> list[tuple[LRScheduler, list[StateDict]]]:
    """Schedulers that follow a metric, whose value may differ between ranks, and the parameter groups that they set."""
    found = [config.scheduler for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    return [(one, one.optimizer.param_groups) for one in found if hasattr(one, "state_dict")]


def callback_states(trainer: Trainer) -> dict[str, StateDict]:
    """Current states of callbacks, as Lightning writes them. Large tensors (averages, changed by steps) are not copied."""
    states = {callback.state_key: callback.state_dict() for callback in callbacks_of(trainer)}
    return {key: plain_copy(state) for key, state in states.items() if state}


def own_callback_states(trainer: Trainer, states: dict[str, StateDict]) -> dict[str, StateDict]:
    """The entries of :func:`callback_states` that differ from rank zero's, which a checkpoint has. Collective.

    Callbacks that follow a metric which is not reduced have received other values on each rank. States with large tensors
    are the same on all ranks.
    """
    sums: list[dict[str, int]] = [
        {key: zlib.crc32(pickle.dumps(state)) for key, state in states.items() if _is_small(state)}
    ]
    own = dict(sums[0])
    if trainer.world_size > 1:
        dist.broadcast_object_list(sums, src=0)
    return {key: states[key] for key, value in own.items() if sums[0].get(key) != value}


def restore_callback_states(trainer: Trainer, states: dict[str, StateDict]) -> None:
    """Restore the result of :func:`own_callback_states`, from copies, as callbacks change the containers that they load."""
    for callback in callbacks_of(trainer):
        if callback.state_key in states:
            callback.load_state_dict(plain_copy(states[callback.state_key]))


def _is_small(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_small(entry) for entry in value.values())
    if isinstance(value, list):
        return all(_is_small(entry) for entry in value)
    return not isinstance(value, torch.Tensor) or value.numel() <= _SMALL


def plain_copy(value: T) -> T:
    """A copy of plain containers; large tensors, which change by steps only, are shared."""
    return cast(T, _plain_copy(value))


def _plain_copy(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.numel() <= _SMALL else value
    if isinstance(value, dict):
        return {key: _plain_copy(entry) for key, entry in value.items()}
    return [_plain_copy(entry) for entry in value] if isinstance(value, list) and type(value) is list else value


def swap_averages(trainer: Trainer) -> None:
    """Swap the module's weights with those that callbacks keep while a validation uses averages; a second call undoes it."""
    for callback in callbacks_of(trainer):
        if getattr(callback, "_average_model", None) is not None and hasattr(callback, "_swap_models"):
            callback._swap_models(trainer.lightning_module)


def _kept(value: object) -> object:
    return _plain(value) if isinstance(value, torch.Tensor) else value


_AGAIN = ("GradientAccumulationScheduler", "StochasticWeightAveraging")
"""Callbacks of Lightning whose hook at the start of an epoch sets state that is in no checkpoint."""


def begin_epoch_again(trainer: Trainer) -> None:
    """Call these callbacks' hooks for a resumed epoch, whose first hooks are not repeated; learning rates stay as loaded."""
    module = trainer.lightning_module
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    groups = [optimizer_settings(optimizer) for optimizer in trainer.optimizers]
    for callback in callbacks_of(trainer):
        if any(kind.__name__ in _AGAIN for kind in type(callback).__mro__):
            callback.on_train_epoch_start(trainer, module)
    for optimizer, before in zip(trainer.optimizers, groups, strict=True):
        for group, settings in zip(optimizer.param_groups, before, strict=True):
            group.update(settings)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])


def optimizer_settings(optimizer: Optimizer) -> list[StateDict]:
    """An optimizer's parameter groups without their parameters."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _plain(value: object) -> torch.Tensor:
    return torch.as_tensor(value).detach().cpu().clone()
