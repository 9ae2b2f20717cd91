# SPDX-License-Identifier: Apache-2.0
"""The history of a run in one file, however often it was interrupted."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger


class HistoryLogger(CSVLogger):
    """Lightning's, which deletes the file of an earlier start; this one goes on with it.

    Args:
        folder: Of the run's output; the file is ``history/metrics.csv`` in it.

    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "history", "")
        self._path = folder / "history" / "metrics.csv"
        self._before = self._read()

    def keep_before(self, step: int) -> None:
        """Rows of earlier starts up to a step, from which training goes on."""
        kept = [row for row in self._before if int(row["step"]) < step]
        self._before = []
        if kept:
            self.experiment.metrics = [*kept, *self.experiment.metrics]

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.is_file():
            return []
        with self._path.open(newline="") as file:
            rows = [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]
        return [row for row in rows if row.get("step", "").isdigit()]  # the last may have been cut short


class ContinueHistory(Callback):
    """Tells :class:`HistoryLogger` where training begins."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before anything is logged."""
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                if isinstance(logger, HistoryLogger):
                    logger.keep_before(trainer.global_step)
