# SPDX-License-Identifier: Apache-2.0
"""Log files of rank zero: its successor appends to them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.csv_rows import continue_rows, is_created, is_held, writer_of

if TYPE_CHECKING:
    from lightning_sagemaker._types import Logger


def begin_writing(loggers: Iterable[Logger]) -> None:
    """Make CSV loggers append to files of previous processes, as this one is rank zero now.

    Args:
        loggers: The Trainer's loggers; only CSV loggers are changed.

    """
    for logger in loggers:
        was_created = is_created(logger)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*exists and is not empty")
            writer = writer_of(logger, creates=True)
        if writer is not None and not (was_created and is_held(writer)):  # otherwise it has led from the start
            continue_rows(writer)


def end_writing(loggers: Iterable[Logger]) -> None:
    """Flush pending rows: this process will no longer be rank zero."""
    for logger in loggers:
        with contextlib.suppress(Exception):  # a failed write is not a reason to fail
            logger.save()
