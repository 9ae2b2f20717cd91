# SPDX-License-Identifier: Apache-2.0
"""What the recipes log, on standard output."""

from __future__ import annotations

import logging
import sys


class Console(logging.StreamHandler):  # type: ignore[type-arg]
    """Ends the run if its output has no reader, as ``print`` does, where logging would print a traceback for each line."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Called within the handling of the error."""
        if isinstance(sys.exc_info()[1], BrokenPipeError):
            raise
        super().handleError(record)


def show_information() -> None:
    """Print what this package logs, unless the script has set up logging already."""
    logger = logging.getLogger("lightning_sagemaker")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = Console(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
