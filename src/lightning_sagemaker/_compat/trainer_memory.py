# SPDX-License-Identifier: Apache-2.0
"""State of a Trainer that Lightning does not write into a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import torch
from typing_extensions import NotRequired

from lightning_sagemaker._compat.loops import current_events
from lightning_sagemaker._compat.plain_copy import plain_copy
from lightning_sagemaker._compat.reloads import Reloads, reloads_of
from lightning_sagemaker._compat.seen_batches import restore_seen_batches, seen_batches

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from lightning_sagemaker._types import StateDict, Trainer


_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_UNSAVED = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation", "current_score")
"""Attributes of ``ModelCheckpoint``: its guard against saving a step twice, and state that it writes but does not read."""
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


def _kept(value: object) -> object:
    return _plain(value) if isinstance(value, torch.Tensor) else value


def _plain(value: object) -> torch.Tensor:
    return torch.as_tensor(value).detach().cpu().clone()
