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


def read_series(history: Path) -> dict[str, list[tuple[float, float]]]:
    """Name -> (step, value) of each logged value; empty without the file.

    Args:
        history: The CSV file that Lightning's logger writes.

    """
    series: dict[str, list[tuple[float, float]]] = {}
    if history.is_file():
        with history.open(newline="") as rows:
            for row in csv.DictReader(rows):
                for name, value in row.items():
                    if value and name not in ("step", "epoch") and row.get("step"):
                        series.setdefault(name, []).append((float(row["step"]), float(value)))
    return series


class HistoryLogger(CSVLogger):
    """CSV logger that continues the file of an earlier start, which Lightning's logger deletes.

    Args:
        folder: Folder of the run's output; the file is ``history/metrics.csv`` in it.

    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "history", "")
        self._path = folder / "history" / "metrics.csv"
        self._before = self._read()
        self._last: list[dict[str, Any]] = []

    @property
    def experiment(self) -> Any:
        """Lightning's experiment, without the warning that earlier files are overwritten."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Experiment logs directory")
            return super().experiment

    def keep_until(self, step: int) -> None:
        """Keep rows of earlier starts up to ``step``, from which training resumes.

        Values that were logged after that step, such as a validation's, may be logged again: then the new row replaces
        the old.
        """
        kept = [row for row in self._before if int(row["step"]) <= step]
        self._before = []
        if kept:
            self._last = [row for row in kept if int(row["step"]) == step]
            self.experiment.metrics = [row for row in kept if int(row["step"]) < step]

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Add a row."""
        if self._last:
            names = {*metrics, "step"}
            is_again = int(self._last[0]["step"]) == step
            self._release([row for row in self._last if not (is_again and row.keys() <= names)])
        super().log_metrics(metrics, step)

    def finalize(self, status: str) -> None:
        """Write the remaining rows."""
        self._release(self._last)
        super().finalize(status)

    def _release(self, rows: list[dict[str, Any]]) -> None:
        if rows:  # on rank zero only: on other ranks the experiment is a dummy
            self.experiment.metrics += rows
        self._last = []

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
    """Tells :class:`HistoryLogger` the step at which training starts."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pass the step on before anything is logged."""
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                if isinstance(logger, HistoryLogger):
                    logger.keep_until(trainer.global_step)
