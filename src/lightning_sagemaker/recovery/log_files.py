# SPDX-License-Identifier: Apache-2.0
"""A rank that takes rank zero's place goes on with its log file; Lightning's CSV logger would start it over."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

_FILE = "metrics.csv"


def go_on_with_files(loggers: list[Any]) -> None:
    """Have CSV loggers append to what another process has written.

    Args:
        loggers: The Trainer's; those that write no CSV file are left as they are.

    """
    for logger in loggers:
        path = Path(str(getattr(logger, "log_dir", None) or ""), _FILE)
        if not hasattr(logger, "save") or not path.is_file():
            continue
        written = path.read_bytes()
        writer = logger.experiment  # removes the file when it is made
        if hasattr(writer, "metrics_keys") and not path.exists():
            path.write_bytes(written)
            with path.open(newline="") as file:
                writer.metrics_keys = next(csv.reader(file), [])
