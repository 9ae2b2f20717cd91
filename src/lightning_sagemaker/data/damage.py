# SPDX-License-Identifier: Apache-2.0
"""Errors of unreadable data, and the replacement of damaged data if requested."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

_GOLDEN = 0.618034
"""Golden ratio: replacements are this fraction apart, so that those of neighboring places lie far from each other."""


class DataReadError(ValueError):
    """Data is missing, corrupt, or cannot be read in time."""

    def __init__(self, message: str) -> None:
        # From a loader's worker, torch recreates the error with the worker's traceback before the message.
        super().__init__(message.rpartition(f"{type(self).__name__}: ")[2].strip())


class DamagedDataError(DataReadError):
    """Data is permanently missing or corrupt."""


def replacements(place: int, count: int) -> Iterator[int]:
    """Yield each of ``count`` places once, starting with ``place``; the same order on all ranks."""
    step = max(1, int(count * _GOLDEN))
    while gcd(step, count) != 1:
        step += 1
    return ((place + turn * step) % count for turn in range(count))
