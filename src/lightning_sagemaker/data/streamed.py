# SPDX-License-Identifier: Apache-2.0
"""Rows of shards in S3, read in blocks through a store on the host's disk."""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_sagemaker.data.batches import EvaluationBatches, TrainingBatches, sample_indices
from lightning_sagemaker.data.block_index import SplitIndex
from lightning_sagemaker.data.block_store import BlockStore, Bytes, Integers
from lightning_sagemaker.data.damage import DamagedDataError, replacements
from lightning_sagemaker.data.order import Blocks
from lightning_sagemaker.data.read_ahead import ReadAhead
from lightning_sagemaker.data.s3_objects import S3Objects, split_address

WINDOW = 64
"""Blocks whose samples are mixed: some 64 MiB, which the first batch waits for and a second window is fetched beside."""

LEAST = 4 * WINDOW
"""Blocks that a store must hold: the present window and the next, of loaders that are not quite at the same place."""

_ATTEMPTS = 4
"""To fetch a block whose checksum is wrong: a body may be cut short on its way."""

_log = logging.getLogger(__name__)


class BlockFetch:
    """Fetches blocks, and compares each with its checksum.

    Args:
        address: Of the folder with the shards, ``s3://bucket/prefix``.
        splits: Whose blocks are numbered one split after the other.
        objects: Reads them.
        skip_damaged: Give another block of the split in the place of one that is damaged, instead of an error.

    """

    holds_no_order = True

    def __init__(
        self, address: str, splits: Mapping[str, SplitIndex], objects: S3Objects, skip_damaged: bool = False
    ) -> None:
        self._address, self._objects, self._skip = address, objects, skip_damaged
        self._skipped = 0
        self._splits = list(splits.values())
        self._firsts = [0, *accumulate(index.blocks for index in self._splits)]

    def __call__(self, block: int) -> bytes:
        """The content of a block.

        Raises:
            DamagedDataError: If it is not there or not what was written, and no other can take its place.
            DataReadError: If it cannot be had now.

        """
        split = bisect_right(self._firsts, block) - 1
        index, number = self._splits[split], block - self._firsts[split]
        try:
            return self._read(index, number)
        except DamagedDataError as error:
            if not self._skip:
                raise
            self._skipped += 1
            what = "%s; another block is trained on in its place (%d blocks so far in this process)"
            _log.warning(what, str(error).split(" HINT:")[0], self._skipped)
            full = index.rows // index.block  # the last may be shorter, and could not replace another
            for other in replacements(number % max(1, full), full):
                with contextlib.suppress(DamagedDataError):
                    return self._read(index, other)
            raise

    def _read(self, index: SplitIndex, number: int) -> bytes:
        bucket, prefix = split_address(self._address)

        def read(name: str, begin: int, end: int) -> bytes:
            return self._objects.read(bucket, f"{prefix}/{name}" if prefix else name, begin, end)

        for attempt in range(1, _ATTEMPTS + 1):
            content, checksum, files = index.read(number, read)
            if checksum == index.crc32[number]:
                return content
            _log.warning("block %d of %s, in %s: wrong checksum, attempt %d", number, self._address, files[0], attempt)
        raise DamagedDataError(
            f"{' and '.join(files)} in {self._address}: block {number} was made with crc32 {index.crc32[number]:08x}, but"
            f" {_ATTEMPTS} times came with another ({checksum:08x} the last time). HINT: copy the file again from where it"
            " was made, or prepare again."
        )


class StreamedRows:
    """The rows of all splits of one set of data.

    Args:
        address: Of the folder with the shards, ``s3://bucket/prefix``.
        splits: Their index.
        cache: Folder for the store, on the host's own disk.
        limit: Bytes of disk to use at most.
        objects: Reads from S3.
        skip_damaged: As for :class:`BlockFetch`.

    """

    holds_no_order = True

    def __init__(
        self,
        address: str,
        splits: Mapping[str, SplitIndex],
        cache: Path,
        limit: int,
        objects: S3Objects | None = None,
        skip_damaged: bool = False,
    ) -> None:
        self._splits = dict(splits)
        counts = [index.blocks for index in self._splits.values()]
        self._firsts = dict(zip(self._splits, accumulate([0, *counts]), strict=False))
        size = max(index.offsets[-1] for index in self._splits.values())
        least = min(sum(counts), LEAST)
        if limit < least * size:
            raise ValueError(
                f"data.cache_gb={limit / 1e9:.3g} was set, but {least} blocks of {size / 1e6:.1f} MB are held at a time."
                f" HINT: at least {least * size / 1e9:.2g}."
            )
        fetch = BlockFetch(address, self._splits, objects or S3Objects(), skip_damaged)
        self.store = BlockStore(cache, sum(counts), size, limit, fetch)
        self._before = self.store.counts

    def rows(self, split: str) -> int:
        """How many a split has."""
        return self._splits[split].rows

    def fetched(self) -> tuple[int, int]:
        """Requests and bytes of this host, all its processes together, since the rows were opened here."""
        blocks, size = (self.store.counts[name] - self._before[name] for name in ("blocks", "bytes"))
        return blocks * max(len(index.columns) for index in self._splits.values()), size

    def columns(self, split: str) -> int:
        """How many a split has."""
        return len(self._splits[split].columns)

    def read(self, split: str, column: int, indices: Integers) -> npt.NDArray[Any]:
        """Rows of a column: ``[len(indices), width]``, of the type in the shards."""
        index = self._splits[split]
        blocks, places = np.divmod(indices, index.block)
        kind, width = np.dtype(index.columns[column].dtype), index.columns[column].width
        shape = (index.block, width)
        offset = index.offsets[column]

        def copy(contents: Bytes, numbers: Integers) -> npt.NDArray[Any]:
            strides = (contents.strides[0], width * kind.itemsize, kind.itemsize)
            view = np.ndarray((len(contents), *shape), kind, contents.data, offset, strides)
            found: npt.NDArray[Any] = view[numbers, places]
            return found

        return self.store.read(blocks + self._firsts[split], copy)

    def blocks(self, split: str) -> Blocks:
        """How training reads a split."""
        return Blocks(self._splits[split].block, WINDOW, near=True)

    def ahead(self, split: str, batches: int) -> ReadAhead:
        """Fetches what the next ``batches`` need while one is trained on."""
        first, block, rows = self._firsts[split], self._splits[split].block, self._splits[split].rows

        def blocks_of(draws: list[int]) -> Integers:
            return np.unique(sample_indices(draws, rows) // block) + first

        return ReadAhead(self.store, blocks_of, batches)

    def look_ahead(self, split: str, batches: TrainingBatches | EvaluationBatches) -> None:
        """Have batches looked at a window ahead."""
        at_once = batches.samples_per_batch * batches.num_replicas
        batches.ahead = self.ahead(split, WINDOW * self._splits[split].block // at_once)
