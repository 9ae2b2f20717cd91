# SPDX-License-Identifier: Apache-2.0
"""Prints the recipes' log on standard output."""

from __future__ import annotations

import logging
import sys

from lightning_sagemaker.errors import about_system


class Console(logging.StreamHandler):  # type: ignore[type-arg]
    """Raises ``BrokenPipeError`` without a reader, as ``print`` does, instead of printing a traceback per line.

    A log that cannot be written otherwise, as on a full disk, does not end the training; that is said once.
    """

    _is_lost = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Re-raise a ``BrokenPipeError``; called in the ``except`` block of the error."""
        error = sys.exc_info()[1]
        if isinstance(error, BrokenPipeError):
            raise
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_lost:
            self._is_lost = True
            print(f"warning: {about_system(error) or error}", file=sys.stderr)


def show_information() -> None:
    """Print this package's log from level INFO on, unless the script has set up logging already."""
    logger = logging.getLogger("lightning_sagemaker")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = Console(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
