# SPDX-License-Identifier: Apache-2.0
"""How many fits, or loops with Fabric, this process has completed, by the folder of their checkpoints.

A script may train several times, as on folds, with one folder: each training resumes from its own checkpoints only.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

_COMPLETED = Counter[str]()


def completed(folder: str | Path) -> int:
    """How many have been completed."""
    return _COMPLETED[str(folder)]


def complete(folder: str | Path) -> None:
    """Another one has been completed."""
    _COMPLETED[str(folder)] += 1
