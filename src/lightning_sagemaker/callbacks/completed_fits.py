# SPDX-License-Identifier: Apache-2.0
"""Counts the fits, or loops with Fabric, that this process has completed, by the folder of their checkpoints.

A script may train several times, as on folds, with one folder: each training resumes from its own checkpoints only.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

_COMPLETED = Counter[str]()


def completed(folder: str | Path) -> int:
    """Number of completed fits or loops."""
    return _COMPLETED[str(folder)]


def complete(folder: str | Path) -> None:
    """Count another completed fit or loop."""
    _COMPLETED[str(folder)] += 1
