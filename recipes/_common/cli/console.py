# SPDX-License-Identifier: Apache-2.0
"""Prints the recipes' log on standard output."""

from __future__ import annotations

import logging
import sys


class Console(logging.StreamHandler):  # type: ignore[type-arg]
    """Raises ``BrokenPipeError`` without a reader, as ``print`` does, instead of printing a traceback per line."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Re-raise a ``BrokenPipeError``; called in the ``except`` block of the error."""
        if isinstance(sys.exc_info()[1], BrokenPipeError):
            raise
        super().handleError(record)


def show_information() -> None:
    """Print this package's log from level INFO on, unless the script has set up logging already."""
    logger = logging.getLogger("lightning_sagemaker")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = Console(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
