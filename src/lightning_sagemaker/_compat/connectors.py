# SPDX-License-Identifier: Apache-2.0
"""What a Trainer and its callbacks remember and do not write into a checkpoint."""

from __future__ import annotations

from typing import Any

import torch

_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_UNSAVED = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")
"""Of ``ModelCheckpoint``: what keeps it from saving the same step twice."""


def trainer_memory(trainer: Any) -> dict[str, Any]:
    """Logged values that callbacks and schedulers look at, whether to stop, and what checkpoint callbacks remember."""
    connector = trainer._logger_connector
    return {
        "logged": {name: {key: _plain(value) for key, value in getattr(connector, name).items()} for name in _METRICS},
        "first_loop_iter": connector._first_loop_iter,
        "current_fx": connector._current_fx,
        "should_stop": bool(trainer.should_stop),
        "callbacks": {
            callback.state_key: {name: getattr(callback, name) for name in _UNSAVED if hasattr(callback, name)}
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


def _plain(value: Any) -> Any:
    return torch.as_tensor(value).detach().cpu().clone()
