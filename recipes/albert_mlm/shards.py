# SPDX-License-Identifier: Apache-2.0
"""Tokenised sequences on disk: memory-mapped shards and the manifest that says they are whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MANIFEST = "manifest.json"
ROWS_PER_SHARD = 1 << 16


class ShardWriter:
    """Writes sequences of one split to ``FOLDER/SPLIT-00000.npy``, ... with at most :data:`ROWS_PER_SHARD` rows each.

    Args:
        folder: Exists.
        split: ``train``, ``val`` or ``test``.
        vocab_size: Decides between two and four bytes per token.

    """

    def __init__(self, folder: Path, split: str, vocab_size: int) -> None:
        self._folder = folder
        self._split = split
        self._dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
        self._rows: list[npt.NDArray[Any]] = []
        self.files: dict[str, dict[str, Any]] = {}

    def add(self, sequence: npt.NDArray[np.int64]) -> None:
        """Append one sequence."""
        self._rows.append(sequence.astype(self._dtype))
        if len(self._rows) == ROWS_PER_SHARD:
            self.flush()

    def flush(self) -> None:
        """Write what has been added since the last shard."""
        if not self._rows:
            return
        path = self._folder / f"{self._split}-{len(self.files):05d}.npy"
        rows = np.stack(self._rows)
        np.save(path, rows)
        digest = hashlib.blake2b(rows.tobytes(), digest_size=16).hexdigest()
        self.files[path.name] = {"rows": len(rows), "bytes": path.stat().st_size, "blake2b": digest}
        self._rows = []


class Shards:
    """All sequences of one split, read through memory maps.

    Args:
        folder: With the shards.
        files: File name -> its entry in the manifest.

    """

    def __init__(self, folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
        self._maps = [np.load(folder / name, mmap_mode="r") for name in sorted(files)]
        self._ends = np.cumsum([0, *(len(rows) for rows in self._maps)])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def rows(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sequences at ``indices``: ``[len(indices), length]``."""
        shards = np.searchsorted(self._ends, indices, side="right") - 1
        result = np.empty((len(indices), self._maps[0].shape[1]), dtype=np.int64)
        for shard in np.unique(shards):
            chosen = shards == shard
            result[chosen] = self._maps[shard][indices[chosen] - self._ends[shard]]
        return result


def settings_key(settings: Mapping[str, Any]) -> str:
    """A short name that changes with the settings."""
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest()


def read_manifest(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest, if ``folder`` is a whole cache made with ``settings``; otherwise ``None``."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
        whole = all(size == manifest["files"][name]["bytes"] for name, size in sizes.items())
        return manifest if whole and manifest["key"] == settings_key(settings) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def build_once(
    folder: Path, settings: Mapping[str, Any], build: Callable[[Path], dict[str, Any]]
) -> tuple[dict[str, Any], bool]:
    """Make the cache at ``folder`` unless it is there and whole.

    Built in a temporary directory beside it, the manifest last, then renamed: whoever sees ``folder`` sees all of it.
    Several hosts with a common disk may do this at the same time: the first to finish wins, the others use its cache.

    Args:
        folder: Of the cache.
        settings: Everything that decides its content.
        build: Fills an empty directory and returns the manifest, which must have ``files``.

    Returns:
        The manifest, and whether this call made the cache.

    """
    manifest = read_manifest(folder, settings)
    if manifest is not None:
        return manifest, False
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        manifest = {"key": settings_key(settings), "settings": dict(settings), **build(staging)}
        manifest["digest"] = settings_key(manifest["files"])
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
        staging.chmod(0o755)
        return _publish(staging, folder, settings, manifest)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(
    staging: Path, folder: Path, settings: Mapping[str, Any], manifest: dict[str, Any]
) -> tuple[dict[str, Any], bool]:
    while True:
        try:
            os.rename(staging, folder)
            return manifest, True
        except OSError:
            if not folder.exists():
                raise
        theirs = read_manifest(folder, settings)
        if theirs is not None:
            return theirs, False
        # A damaged cache: moved away first, so that nobody reads it while it is being deleted.
        aside = folder.with_name(f".{folder.name}-damaged-{uuid.uuid4().hex}")
        try:
            os.rename(folder, aside)
        except FileNotFoundError:
            continue
        shutil.rmtree(aside, ignore_errors=True)
