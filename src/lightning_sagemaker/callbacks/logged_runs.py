# SPDX-License-Identifier: Apache-2.0
"""Saves and restores the run ids of loggers whose run is resumed along with training, and the rows of CSV loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from lightning_sagemaker._compat.csv_rows import continue_rows, count_rows, writer_of
from lightning_sagemaker.checkpoint.find import STATE

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, StateDict, Trainer


_ENTRY, _ROWS = "loggers", "rows"


class ResumableLogger(Protocol):
    """A logger whose run can be resumed."""

    def run_state(self) -> StateDict:
        """The state that identifies the run."""

    def load_run_state(self, state: StateDict) -> None:
        """Resume the run."""


def save_logged_runs(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Add the states of the loggers that have one, by index in ``trainer.loggers``. Only rank zero has them."""
    if trainer.is_global_zero:
        runs = {str(place): logger.run_state() for place, logger in _with_runs(trainer)}
        for place, one in enumerate(trainer.loggers):
            if (writer := writer_of(one)) is not None:
                one.save()  # a run that is resumed logs later rows only
                runs[str(place)] = {_ROWS: count_rows(writer)}
        if runs:
            checkpoint[STATE][_ENTRY] = runs


def load_logged_runs(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Pass the saved runs to the loggers, before anything is logged."""
    runs = checkpoint.get(STATE, {}).get(_ENTRY, {})
    for place, logger in _with_runs(trainer):
        if str(place) in runs:
            logger.load_run_state(runs[str(place)])
    if trainer.ckpt_path is not None:  # of any run: the script has named it
        return
    for place, one in enumerate(trainer.loggers):
        writer = writer_of(one)
        if writer is not None and _ROWS in runs.get(str(place), {}):
            continue_rows(writer, runs[str(place)][_ROWS])


def _with_runs(trainer: Trainer) -> list[tuple[int, ResumableLogger]]:
    # Tested on the class, as Lightning's dummy logger has every attribute.
    found = [(place, one) for place, one in enumerate(trainer.loggers) if hasattr(type(one), "load_run_state")]
    return cast("list[tuple[int, ResumableLogger]]", found)
