# SPDX-License-Identifier: Apache-2.0
"""Text files that are complete or unchanged, whatever happens while they are written."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name, then rename, so that readers see the old text or the new one; creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:  # a disk that is full does not keep what was written so far
        temporary.unlink(missing_ok=True)
        raise
