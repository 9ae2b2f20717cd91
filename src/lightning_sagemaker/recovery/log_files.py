# SPDX-License-Identifier: Apache-2.0
"""Log files of rank zero: its successor appends to them, and no rows are lost if it is killed."""

from __future__ import annotations

import contextlib
import csv
import os
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from lightning.pytorch.loggers import CSVLogger, Logger

_FILE = "metrics.csv"


def begin_writing(loggers: Iterable[Logger]) -> None:
    """Make CSV loggers append to files of previous processes, as this one is rank zero now.

    Lightning's own deletes the file at the start, and truncates it to rewrite it when there is a new column.

    Args:
        loggers: The Trainer's loggers; only CSV loggers are changed.

    """
    for logger in loggers:
        writes_rows = any(kind.__name__ == "CSVLogger" for kind in type(logger).__mro__)
        if writes_rows and logger.log_dir and Path(logger.log_dir).is_dir():  # not a URL such as s3://
            _append(cast("CSVLogger", logger), Path(logger.log_dir, _FILE))


def end_writing(loggers: Iterable[Logger]) -> None:
    """Flush pending rows: this process will no longer be rank zero."""
    for logger in loggers:
        with contextlib.suppress(Exception):  # a failed write is not a reason to fail
            logger.save()


def _append(logger: CSVLogger, path: Path) -> None:
    kept = path.with_name(f"{_FILE}.kept")
    if path.is_file():
        path.replace(kept)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*exists and is not empty")
        writer = logger.experiment
    writer._rewrite_with_new_header = partial(_rewrite, path)
    if kept.is_file():
        with kept.open("r+b") as file:  # a kill may have left an incomplete last line
            written = file.read()
            file.truncate(written.rfind(b"\n") + 1)
        kept.replace(path)
        with path.open(newline="") as rows:
            writer.metrics_keys = next(csv.reader(rows), [])


def _rewrite(path: Path, columns: Sequence[str]) -> None:
    """Change a file's columns, atomically."""
    new = path.with_name(f"{path.name}.new")
    with path.open(newline="") as old, new.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=columns)
        writer.writeheader()
        writer.writerows(csv.DictReader(old))
    os.replace(new, path)
