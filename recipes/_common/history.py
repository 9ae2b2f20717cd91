# SPDX-License-Identifier: Apache-2.0
"""The history of a run in one file, however often it was interrupted."""

from __future__ import annotations

import contextlib
import csv
import warnings
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

    @property
    def experiment(self) -> Any:
        """Lightning's, without its warning that the files before are lost."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Experiment logs directory")
            return super().experiment

    def keep_before(self, step: int) -> None:
        """Rows of earlier starts up to a step, from which training goes on."""
        kept = [row for row in self._before if int(row["step"]) < step]
        self._before = []
        if kept:
            self.experiment.metrics = [*kept, *self.experiment.metrics]

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.is_file():
            return []
        rows = []
        with self._path.open(newline="", errors="replace") as file, contextlib.suppress(csv.Error):  # as it was killed
            for row in csv.DictReader(file):
                if str(row.get("step", "")).isdecimal():
                    rows.append({key: value for key, value in row.items() if key and value})
        return rows


class ContinueHistory(Callback):
    """Tells :class:`HistoryLogger` where training begins."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before anything is logged."""
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                if isinstance(logger, HistoryLogger):
                    logger.keep_before(trainer.global_step)
