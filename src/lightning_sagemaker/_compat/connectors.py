# SPDX-License-Identifier: Apache-2.0
"""What a Trainer and its callbacks remember and do not write into a checkpoint."""

from __future__ import annotations

from typing import Any

import torch

_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_UNSAVED = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation", "current_score")
"""Of ``ModelCheckpoint``: what keeps it from saving the same step twice, and what it does not read of what it writes."""


def trainer_memory(trainer: Any) -> dict[str, Any]:
    """Logged values that callbacks and schedulers look at, whether to stop, and what checkpoint callbacks remember."""
    connector = trainer._logger_connector
    return {
        "logged": {name: {key: _plain(value) for key, value in getattr(connector, name).items()} for name in _METRICS},
        "first_loop_iter": connector._first_loop_iter,
        "current_fx": connector._current_fx,
        "should_stop": bool(trainer.should_stop),
        "callbacks": {
            callback.state_key: {name: _kept(getattr(callback, name)) for name in _UNSAVED if hasattr(callback, name)}
            for callback in trainer.checkpoint_callbacks
        },
    }


def restore_trainer_memory(trainer: Any, memory: dict[str, Any]) -> None:
    """Set what :func:`trainer_memory` gave."""
    connector, device = trainer._logger_connector, trainer.strategy.root_device
    for name in _METRICS:
        values = {key: value.to(device) for key, value in memory["logged"][name].items()}
        getattr(connector, name).update(values)
    connector._first_loop_iter = memory["first_loop_iter"]
    connector._current_fx = memory["current_fx"]
    trainer.should_stop = memory["should_stop"]
    for callback in trainer.checkpoint_callbacks:
        for name, value in memory["callbacks"].get(callback.state_key, {}).items():
            setattr(callback, name, value)


def swap_averages(trainer: Any) -> None:
    """Give the module its own weights back within a validation, in which callbacks let it have averages; or the other way."""
    for callback in trainer.callbacks:
        if getattr(callback, "_average_model", None) is not None and hasattr(callback, "_swap_models"):
            callback._swap_models(trainer.lightning_module)


def _kept(value: Any) -> Any:
    return _plain(value) if isinstance(value, torch.Tensor) else value


def schedule_accumulation(trainer: Any) -> None:
    """Accumulate as the epoch wants it: its first hooks, in which Lightning's callback says so, are not called again."""
    for callback in trainer.callbacks:
        if hasattr(callback, "get_accumulate_grad_batches"):
            trainer.accumulate_grad_batches = callback.get_accumulate_grad_batches(trainer.current_epoch)


def _plain(value: Any) -> Any:
    return torch.as_tensor(value).detach().cpu().clone()
