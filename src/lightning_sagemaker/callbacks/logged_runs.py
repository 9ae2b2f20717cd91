# SPDX-License-Identifier: Apache-2.0
"""Loggers whose run goes on when the training does: what they are doing is in the checkpoint."""

from __future__ import annotations

from typing import Any

from lightning_sagemaker.checkpoint.resume import STATE

_ENTRY = "loggers"


def save_logged_runs(trainer: Any, checkpoint: dict[str, Any]) -> None:
    """Add the states of the loggers that have one, by place in ``trainer.loggers``. Only rank zero's are known."""
    if trainer.is_global_zero:
        runs = {str(place): logger.run_state() for place, logger in _with_runs(trainer)}
        if runs:
            checkpoint[STATE][_ENTRY] = runs


def load_logged_runs(trainer: Any, checkpoint: dict[str, Any]) -> None:
    """Tell loggers which run they go on with, before anything is logged."""
    runs = checkpoint.get(STATE, {}).get(_ENTRY, {})
    for place, logger in _with_runs(trainer):
        if str(place) in runs:
            logger.load_run_state(runs[str(place)])


def _with_runs(trainer: Any) -> list[tuple[int, Any]]:
    # Asked of the class: Lightning's dummy logger has every attribute.
    return [(place, one) for place, one in enumerate(trainer.loggers) if hasattr(type(one), "load_run_state")]
