# SPDX-License-Identifier: Apache-2.0
"""Fingerprints that change whenever files on disk may have changed, without reading them."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def file_fingerprint(path: Path) -> list[Any]:
    """Path, size and modification time: changes whenever the file may have changed."""
    stat = path.stat()
    return [str(path.resolve()), stat.st_size, stat.st_mtime_ns]


def pretrained_fingerprint(name: str) -> Any:
    """Changes whenever the local files of tokenizer ``name`` may have changed; of a hub name, the name."""
    path = Path(name)
    if path.is_dir():
        return [
            file_fingerprint(found) for found in sorted(path.iterdir()) if found.suffix in (".json", ".txt", ".model")
        ]
    return file_fingerprint(path) if path.is_file() else name
