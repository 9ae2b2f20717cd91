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
from lightning_sagemaker.data.block_index import RUN, Content, SplitIndex
from lightning_sagemaker.data.block_store import BlockStore, Bytes, Integers
from lightning_sagemaker.data.damage import DamagedDataError, replacements
from lightning_sagemaker.data.order import Blocks
from lightning_sagemaker.data.read_ahead import ReadAhead
from lightning_sagemaker.data.s3_objects import S3Objects, split_address

WINDOW = 64
"""Number of blocks of a window, about 64 MiB, for which the first batch waits. The next window is prefetched."""

LEAST = 4 * WINDOW
"""Number of blocks that a store must hold: two windows, for loaders at slightly different positions."""

_ATTEMPTS = 4
"""Maximum attempts to fetch a block with a wrong checksum, as a body may be truncated in transit."""

_log = logging.getLogger(__name__)


class BlockFetch:
    """Fetches blocks, and compares each with its checksum.

    Args:
        address: URI of the folder with the shards, ``s3://bucket/prefix``.
        splits: Indexes of the splits, whose blocks are numbered one split after the other.
        objects: Reads the objects.
        skip_damaged: Return another block of the split instead of a damaged one, instead of an error.

    """

    holds_no_order = True

    def __init__(
        self, address: str, splits: Mapping[str, SplitIndex], objects: S3Objects, skip_damaged: bool = False
    ) -> None:
        self._address, self._objects, self._skip = address, objects, skip_damaged
        self._skipped = 0
        self._splits = list(splits.values())
        self._firsts = [0, *accumulate(index.blocks for index in self._splits)]

    def __call__(self, first: int, count: int, buffer: memoryview) -> list[Content]:
        """Read ``count`` blocks from ``first`` on; valid until the buffer is reused.

        Raises:
            DamagedDataError: If a block is missing or corrupt, and there is no replacement.
            DataReadError: If a block cannot be read now.

        """
        split = bisect_right(self._firsts, first) - 1
        index, number = self._splits[split], first - self._firsts[split]
        try:
            if count == 1 or first + count <= self._firsts[split + 1]:
                return self._read(index, number, count, buffer)
        except DamagedDataError as error:
            if count == 1:
                return self._replace(index, number, buffer, error)
        # The blocks are of two splits, or not all intact.
        size = len(buffer) // count
        return [self(first + place, 1, buffer[place * size : (place + 1) * size])[0] for place in range(count)]

    def _replace(self, index: SplitIndex, number: int, buffer: memoryview, error: DamagedDataError) -> list[Content]:
        if not self._skip:
            raise error
        self._skipped += 1
        what = "%s; training on another block instead (%d blocks so far in this process)"
        _log.warning(what, str(error).split(" HINT:")[0], self._skipped)
        full = index.rows // index.block  # without a shorter last block, which could not replace another
        for other in replacements(number % max(1, full), full):
            with contextlib.suppress(DamagedDataError):
                return self._read(index, other, 1, buffer)
        raise error

    def _read(self, index: SplitIndex, first: int, count: int, buffer: memoryview) -> list[Content]:
        bucket, prefix = split_address(self._address)

        def read(name: str, begin: int, part: memoryview) -> None:
            self._objects.read_into(bucket, f"{prefix}/{name}" if prefix else name, begin, part)

        for attempt in range(1, _ATTEMPTS + 1):
            contents = index.read(first, count, read, buffer)
            found = [content.crc32 for content in contents]
            wrong = [block for block, checksum in enumerate(found, first) if checksum != index.crc32[block]]
            if not wrong:
                return contents
            files = contents[0].files
            _log.warning(
                "block %d of %s, in %s: wrong checksum, attempt %d", wrong[0], self._address, files[0], attempt
            )
            if count > 1:
                break
        raise DamagedDataError(
            f"{' and '.join(files)} in {self._address}: block {wrong[0]} was written with crc32 {index.crc32[wrong[0]]:08x},"
            f" but {attempt} reads returned others ({found[wrong[0] - first]:08x} the last time). HINT: copy the file again"
            " from its source, or prepare again."
        )


class StreamedRows:
    """The rows of all splits of one data set.

    Args:
        address: URI of the folder with the shards, ``s3://bucket/prefix``.
        splits: Split -> index.
        cache: Folder for the store, on the host's own disk.
        limit: Maximum bytes of disk to use.
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
                f" HINT: set at least {least * size / 1e9:.2g}."
            )
        fetch = BlockFetch(address, self._splits, objects or S3Objects(), skip_damaged)
        self.store = BlockStore(cache, sum(counts), size, limit, fetch)
        self._before = self.store.counts

    def rows(self, split: str) -> int:
        """Number of rows or columns of a split."""
        return self._splits[split].rows

    def fetched(self) -> tuple[int, int]:
        """Requests and bytes of all processes of this host, since the rows were opened here."""
        requests, size = (self.store.counts[name] - self._before[name] for name in ("requests", "bytes"))
        return requests, size

    def columns(self, split: str) -> int:
        """Number of rows or columns of a split."""
        return len(self._splits[split].columns)

    def read(self, split: str, column: int, indices: Integers) -> npt.NDArray[Any]:
        """Rows of a column, ``[len(indices), width]``, with the shards' dtype."""
        index = self._splits[split]
        blocks, places = np.divmod(indices, index.block)
        kind, width = np.dtype(index.columns[column].dtype), index.columns[column].width
        row = np.dtype((np.void, index.columns[column].row_bytes))  # rows are copied as one piece, not by element
        offset = index.offsets[column]

        def copy(contents: Bytes, numbers: Integers) -> npt.NDArray[Any]:
            shape, strides = (len(contents), index.block), (contents.strides[0], row.itemsize)
            rows = np.ndarray(shape, row, contents.data, offset, strides)
            found: npt.NDArray[Any] = rows[numbers, places].view(kind).reshape(-1, width)
            return found

        first = self._firsts[split]
        if self.store.missing(blocks + first):
            self.store.fetch((_whole_runs(blocks, index.blocks) + first).tolist())
        return self.store.read(blocks + first, copy)

    def blocks(self, split: str) -> Blocks:
        """The grouping of samples with which training reads a split."""
        return Blocks(RUN * self._splits[split].block, WINDOW // RUN, near=True)

    def ahead(self, split: str, batches: int) -> ReadAhead:
        """Prefetches the blocks of the next ``batches`` during the current step."""
        index, first = self._splits[split], self._firsts[split]

        def blocks_of(draws: Integers) -> Integers:
            return _whole_runs(sample_indices(draws, index.rows) // index.block, index.blocks) + first

        return ReadAhead(self.store, blocks_of, batches)

    def look_ahead(self, split: str, batches: TrainingBatches | EvaluationBatches) -> None:
        """Look ahead by a window of batches."""
        at_once = batches.samples_per_batch * batches.num_replicas
        batches.ahead = self.ahead(split, WINDOW * self._splits[split].block // at_once)


def _whole_runs(blocks: Integers, count: int) -> Integers:
    """All blocks of the runs that contain ``blocks``, of ``count`` in total, ascending: neighbors are needed soon."""
    runs = np.unique(blocks // RUN)
    whole = (runs[:, None] * RUN + np.arange(RUN)).reshape(-1)
    return whole[whole < count]
