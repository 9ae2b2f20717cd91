# SPDX-License-Identifier: Apache-2.0
"""Tokenised sequences on disk: memory-mapped shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_sagemaker.data.block_index import BLOCK_BYTES
from lightning_sagemaker.data.order import Blocks
from lightning_sagemaker.recipes._common.data.checked import CheckedFiles
from lightning_sagemaker.recipes._common.data.checksums import file_entry

Integers = npt.NDArray[np.int64]

_FEW = 1 << 22
"""Sequences whose order is drawn as a whole."""
_WINDOW = 1024
"""Blocks of more than that whose sequences are mixed, 1 GiB."""

SEGMENTS = "-segments"
"""At the end of the name of the file that says where the second segment of each row begins."""


def write_shard(
    folder: Path, split: str, number: int, rows: Integers, first: Integers | None, vocab_size: int
) -> dict[str, dict[str, Any]]:
    """Write ``SPLIT-NUMBER.npy`` and, given the lengths of first segments, ``SPLIT-NUMBER-segments.npy``.

    Args:
        folder: Exists.
        split: ``train``, ``val`` or ``test``.
        number: Of the shard.
        rows: ``[sequences, length]``; nothing is written if there are none.
        first: ``[sequences]``.
        vocab_size: Decides between two and four bytes per token.

    Returns:
        The manifest's entries.

    """
    if not len(rows):
        return {}
    path = folder / f"{split}-{number:05d}.npy"
    np.save(path, rows.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32))
    entries = {path.name: {"rows": len(rows), **file_entry(path)}}
    if first is not None:
        path = folder / f"{split}-{number:05d}{SEGMENTS}.npy"
        np.save(path, first.astype(np.uint16))
        entries[path.name] = {"rows": 0, **file_entry(path)}
    return entries


class Shards:
    """All sequences of one split, read through memory maps; a shard is checked before it is first read.

    Args:
        folder: With the shards.
        files: Of the split: their names and entries in the manifest.

    """

    def __init__(self, folder: Path, files: Mapping[str, Any]) -> None:
        self._files = CheckedFiles(folder, files)
        self._names = sorted(name for name in files if SEGMENTS not in name)
        self._maps = [self._files.map(name) for name in self._names]
        self._ends = np.cumsum([0, *(len(rows) for rows in self._maps)])
        parts = [self._files.load(name) for name in sorted(files) if SEGMENTS in name]
        self._first = np.concatenate(parts).astype(np.int64) if parts else None

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def blocks(self) -> Blocks | None:
        """How training reads them: so many that they are on a network's disk or a slow one, piece by piece."""
        if len(self) <= _FEW:
            return None
        return Blocks(max(1, BLOCK_BYTES // self._maps[0].strides[0]), _WINDOW)

    def look_ahead(self, batches: object) -> None:
        """Nothing: the kernel does."""

    def rows(self, indices: Integers) -> Integers:
        """The sequences at ``indices``: ``[len(indices), length]``."""
        shards = np.searchsorted(self._ends, indices, side="right") - 1
        needed = np.unique(shards)
        self._files.check(self._names[shard] for shard in needed)
        result = np.empty((len(indices), self._maps[0].shape[1]), dtype=np.int64)
        for shard in needed:
            chosen = shards == shard
            result[chosen] = self._maps[shard][indices[chosen] - self._ends[shard]]
        return result

    def first_segments(self, indices: Integers) -> Integers | None:
        """Their numbers of tokens in the first segment ``[len(indices)]``; ``None`` if there is only one segment."""
        return None if self._first is None else self._first[indices]
