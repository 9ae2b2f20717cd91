# SPDX-License-Identifier: Apache-2.0
"""The error of data that cannot be read."""

from __future__ import annotations


class DataReadError(ValueError):
    """Data is missing, is not what was written, or cannot be had in time."""

    def __init__(self, message: str) -> None:
        # From a loader's worker, torch makes the error anew with the worker's traceback before the message.
        super().__init__(message.rpartition(f"{type(self).__name__}: ")[2].strip())
