# SPDX-License-Identifier: Apache-2.0
"""Tokenized sequences on disk: memory-mapped shards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_sagemaker.data.block_index import BLOCK_BYTES
from lightning_sagemaker.data.damage import replacements
from lightning_sagemaker.data.order import Blocks
from lightning_sagemaker.recipes._common.data.checked import CheckedFiles, DamagedFileError
from lightning_sagemaker.recipes._common.data.checksums import file_entry

Integers = npt.NDArray[np.int64]

_FEW = 1 << 22
"""Maximum number of sequences that are shuffled one by one instead of in blocks."""
_WINDOW = 1024
"""Number of blocks whose sequences are shuffled together, 1 GiB."""

SEGMENTS = "-segments"
"""Suffix of the name of the file with the length of each row's first segment."""


def write_shard(
    folder: Path, split: str, number: int, rows: Integers, first: Integers | None, vocab_size: int
) -> dict[str, dict[str, Any]]:
    """Write ``SPLIT-NUMBER.npy`` and, given the lengths of first segments, ``SPLIT-NUMBER-segments.npy``.

    Args:
        folder: Existing folder.
        split: ``train``, ``val`` or ``test``.
        number: Number of the shard.
        rows: ``[sequences, length]``; nothing is written if there are none.
        first: ``[sequences]``, tokens of the first segment; ``None``: there is only one.
        vocab_size: Vocabulary size: up to 65536, a token takes two bytes, else four.

    Returns:
        The manifest's entries.

    """
    if not len(rows):
        return {}
    path = folder / f"{split}-{number:05d}.npy"
    _save(path, rows.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32))
    entries = {path.name: {"rows": len(rows), **file_entry(path)}}
    if first is not None:
        path = folder / f"{split}-{number:05d}{SEGMENTS}.npy"
        _save(path, first.astype(np.uint16))
        entries[path.name] = {"rows": 0, **file_entry(path)}
    return entries


def _save(path: Path, array: npt.NDArray[Any]) -> None:
    """Atomic, even while a process of an earlier run still writes the file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with temporary.open("wb") as file:
        np.save(file, array)
    temporary.replace(path)


class Shards:
    """All sequences of one split, read through memory maps; a shard is verified before it is first read.

    Args:
        folder: Folder of the shards.
        files: Name -> manifest entry of the split's files.
        skip_damaged: Return sequences of other shards in place of those of a damaged one, instead of raising.

    Raises:
        DamagedFileError: If a file that is needed is damaged; with ``skip_damaged``, if all are.

    """

    def __init__(self, folder: Path, files: Mapping[str, Any], skip_damaged: bool = False) -> None:
        self._files, self._skip = CheckedFiles(folder, files), skip_damaged
        self._names = sorted(name for name in files if SEGMENTS not in name)
        self._beside = sorted(name for name in files if SEGMENTS in name)
        self._maps = [self._map(name, files[name]) for name in self._names]
        self._lengths = np.array([len(rows) for rows in self._maps])
        self._ends = np.cumsum([0, *self._lengths])
        self._one = self._maps[self._usable(0)][:1]
        parts = [self._load(name, len(rows)) for name, rows in zip(self._beside, self._maps, strict=False)]
        self._first = np.concatenate(parts).astype(np.int64) if parts else None

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def blocks(self) -> Blocks | None:
        """Blocks in which training reads many sequences, which may be on a slow disk; ``None``: one by one."""
        if len(self) <= _FEW:
            return None
        return Blocks(max(1, BLOCK_BYTES // self._one.strides[0]), _WINDOW)

    def look_ahead(self, batches: object) -> None:
        """Does nothing: the kernel reads ahead."""

    def rows(self, indices: Integers) -> Integers:
        """The sequences at ``indices``: ``[len(indices), length]``."""
        shards, places = self._places(indices)
        result = np.empty((len(indices), self._one.shape[1]), dtype=np.int64)
        for shard in np.unique(shards):
            chosen = shards == shard
            result[chosen] = self._maps[shard][places[chosen]]
        return result

    def first_segments(self, indices: Integers) -> Integers | None:
        """Tokens in the first segment of the sequences, ``[len(indices)]``; ``None`` if there is only one segment."""
        if self._first is None:
            return None
        shards, places = self._places(indices)
        return self._first[self._ends[shards] + places]

    def _places(self, indices: Integers) -> tuple[Integers, Integers]:
        """Shard of each index, and row in it; the shards are verified first."""
        shards = np.searchsorted(self._ends, indices, side="right") - 1
        places = indices - self._ends[shards]
        if not self._skip:
            self._files.check(self._names[shard] for shard in np.unique(shards))
            return shards, places
        for shard in np.unique(shards):
            chosen = shards == shard
            shards[chosen] = other = self._usable(int(shard))
            places[chosen] %= self._lengths[other]
        return shards, places

    def _usable(self, shard: int) -> int:
        """The shard itself, or the intact shard that replaces it."""
        if not self._skip:
            return shard
        for other in replacements(shard, len(self._names)):
            if all(map(self._files.is_intact, (self._names[other], *self._beside[other : other + 1]))):
                return other
        raise DamagedFileError(f"all {len(self._names)} shards are damaged. HINT: prepare again.")

    def _map(self, name: str, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
        try:
            return self._files.map(name)
        except DamagedFileError:
            if not self._skip:
                raise
            return np.broadcast_to(np.uint16(0), (entry["rows"], 1))  # a placeholder of the same length, never read

    def _load(self, name: str, rows: int) -> npt.NDArray[Any]:
        if self._skip and not self._files.is_intact(name):
            return np.zeros(rows)
        return self._files.load(name)
