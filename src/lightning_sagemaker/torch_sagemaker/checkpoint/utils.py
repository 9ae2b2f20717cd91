# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.checkpoint.utils``: removes old checkpoints."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def SORT_BY_LAST_INT(name: str | os.PathLike[str]) -> int:
    """The last number in a name; -1 without one."""
    numbers = re.findall(r"\d+", os.fspath(name))
    return int(numbers[-1]) if numbers else -1


def limit_num_subdirs(
    path: str | os.PathLike[str],
    n: int,
    sort_fn: Callable[[str], Any] = SORT_BY_LAST_INT,
    regex: str | None = None,
    log: bool = True,
) -> None:
    """Remove all but the last ``n`` folders in ``path``.

    Args:
        path: Folder; need not exist.
        n: Number of folders to keep; all, if negative.
        sort_fn: Sort key of a folder's name; the oldest sorts first.
        regex: Consider only folders whose names match.
        log: Whether to print the removed folders.

    """
    if n < 0 or not Path(path).is_dir():
        return
    found = [place for place in Path(path).iterdir() if place.is_dir() and (not regex or re.match(regex, place.name))]
    found.sort(key=lambda place: sort_fn(place.name))
    for place in found[: len(found) - n]:
        if log:
            print(f"removing {place}")
        shutil.rmtree(place)
