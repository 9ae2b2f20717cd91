# SPDX-License-Identifier: Apache-2.0
"""The history of a run in one file, however often it was interrupted."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

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
    """CSV logger with one file, which a run that is resumed continues.

    Args:
        folder: Folder of the run's output; the file is ``history/metrics.csv`` in it.

    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "history", "")

    @property
    def experiment(self) -> Any:
        """Lightning's experiment, without the warning that earlier files are overwritten."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Experiment logs directory")
            return super().experiment
