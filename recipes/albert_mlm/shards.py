# SPDX-License-Identifier: Apache-2.0
"""Tokenised sequences on disk: memory-mapped shards."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
