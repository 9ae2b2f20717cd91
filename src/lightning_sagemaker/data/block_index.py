# SPDX-License-Identifier: Apache-2.0
"""An index of shards of fixed-size rows: the location of each block of rows, and its checksum.

The rows of a split are numbered across its shards, and a block is a number of consecutive rows; it may start in one
shard and end in the next. Some data has several columns, in separate files: a block has the rows of all of them.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

INDEX = "blocks.json"
"""Name of the index, next to the shards."""

BLOCK_BYTES = 1 << 20
"""Approximate bytes of the first column in a block: below that, S3 is slow and expensive."""

_FORMAT = 1

RUN = 4
"""Number of consecutive blocks that are read by one request if all of them are needed."""

Read = Callable[[str, int, memoryview], None]
"""Fills a buffer with the bytes of a file, by its name, from an offset on."""


@dataclass(frozen=True)
class Content:
    """A block that was read.

    Args:
        parts: Offset of each column in a block of a store, and the bytes of its rows.
        files: Names of the files that it was read from.
        requests: Number of requests for it; a request for several blocks counts for the first one.

    """

    parts: tuple[tuple[int, memoryview], ...]
    files: tuple[str, ...] = ()
    requests: int = 1

    @property
    def crc32(self) -> int:
        """Checksum of the rows, one column after the other."""
        checksum = 0
        for _, part in self.parts:
            checksum = zlib.crc32(part, checksum)
        return checksum

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        return sum(len(part) for _, part in self.parts)


@dataclass(frozen=True)
class Column:
    """One array per shard.

    Args:
        files: Names, in order.
        rows: Rows of each file.
        offsets: Offset of the first row in each file, in bytes.
        dtype: dtype of the elements, as numpy writes it.
        width: Number of elements in a row.

    """

    files: tuple[str, ...]
    rows: tuple[int, ...]
    offsets: tuple[int, ...]
    dtype: str
    width: int

    @classmethod
    def of(cls, folder: Path, files: Sequence[str]) -> Column:
        """The column in some ``.npy`` files."""
        arrays = [np.load(folder / name, mmap_mode="r") for name in files]
        width = 1 if arrays[0].ndim == 1 else int(arrays[0].shape[1])
        offsets = tuple(int(array.offset) for array in arrays)
        return cls(tuple(files), tuple(map(len, arrays)), offsets, arrays[0].dtype.str, width)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.dtype(self.dtype).itemsize) * self.width

    def ranges(self, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
        """File, first byte and end (exclusive) of rows ``begin`` to ``end`` (exclusive), for each file that has some."""
        file = bisect_right(self._ends, begin)
        while begin < end:
            first = self._ends[file] - self.rows[file]
            last = min(end, self._ends[file])
            low, high = (self.offsets[file] + (row - first) * self.row_bytes for row in (begin, last))
            if low < high:
                yield self.files[file], low, high
            begin, file = last, file + 1

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.rows))


@dataclass(frozen=True)
class SplitIndex:
    """The blocks of one split.

    Args:
        block: Rows in a block; the last may have fewer.
        columns: Columns, all with the same number of rows.
        crc32: Checksum of each block, ``[blocks]``, over the columns' rows, one column after the other.

    """

    block: int
    columns: tuple[Column, ...]
    crc32: tuple[int, ...] = ()

    @cached_property
    def rows(self) -> int:
        """Number of rows."""
        return sum(self.columns[0].rows)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.rows // self.block)

    @cached_property
    def reads(self) -> int:
        """Number of requests to read each block once: one for each column of a run, and more where a shard ends in it."""
        return sum(len(self.requests(first, min(RUN, self.blocks - first))) for first in range(0, self.blocks, RUN))

    def requests(self, first: int, count: int) -> list[tuple[str, int, int]]:
        """File, first byte and end (exclusive) of each request for ``count`` blocks from ``first`` on."""
        begin, end = first * self.block, min((first + count) * self.block, self.rows)
        return [request for column in self.columns for request in column.ranges(begin, end)]

    @cached_property
    def offsets(self) -> list[int]:
        """Offset of each column in a block, then the block's size, in bytes."""
        return [0, *accumulate(self.block * column.row_bytes for column in self.columns)]

    def read(self, first: int, count: int, read: Read, buffer: memoryview) -> list[Content]:
        """Read consecutive blocks.

        Args:
            first: Index of the first block.
            count: Number of blocks.
            read: Called once for each column and file.
            buffer: Memory for ``count`` blocks; the result is valid until it is reused.

        """
        place = 0
        ends = [min((first + number + 1) * self.block, self.rows) for number in range(count)]
        contents: list[list[tuple[int, memoryview]]] = [[] for _ in range(count)]
        files = [name for name, _, _ in self.requests(first, count)]
        for column, offset in zip(self.columns, self.offsets, strict=False):
            begin = place
            for name, low, high in column.ranges(first * self.block, ends[-1]):
                read(name, low, buffer[place : place + high - low])
                place += high - low
            for number, content in enumerate(contents):
                rows = ends[number] - (first + number) * self.block
                content.append((offset, buffer[begin : begin + rows * column.row_bytes]))
                begin += rows * column.row_bytes
        return [
            Content(tuple(parts), tuple(files), 0 if number else len(files)) for number, parts in enumerate(contents)
        ]


def index_shards(folder: Path, splits: Mapping[str, Sequence[Sequence[str]]]) -> dict[str, SplitIndex]:
    """Read all shards, and index their blocks.

    Args:
        folder: Folder with the shards.
        splits: Split -> columns -> names of their files.

    """
    found = {}
    for split, names in splits.items():
        columns = tuple(Column.of(folder, files) for files in names)
        index = SplitIndex(max(1, BLOCK_BYTES // columns[0].row_bytes), columns)
        buffer = memoryview(bytearray(index.offsets[-1]))
        sums = (index.read(number, 1, partial(_fill, folder), buffer)[0].crc32 for number in range(index.blocks))
        found[split] = SplitIndex(index.block, columns, tuple(sums))
    return found


def index_text(splits: Mapping[str, SplitIndex]) -> str:
    """Serialize an index."""
    plain = {split: asdict(index) | {"crc32": _hexadecimal(index.crc32)} for split, index in splits.items()}
    return json.dumps({"format": _FORMAT, "splits": plain}, indent=1, sort_keys=True) + "\n"


def read_index(text: str) -> dict[str, SplitIndex]:
    """Parse the text of :func:`index_text`.

    Raises:
        ValueError: If it is not an index, or of an unknown version.

    """
    try:
        plain = json.loads(text)
        if plain["format"] != _FORMAT:
            raise ValueError(f"format {plain['format']} is not known")
        return {split: _split_of(entry) for split, entry in plain["splits"].items()}
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an index of blocks ({type(error).__name__}: {error})") from error


def _split_of(entry: dict[str, Any]) -> SplitIndex:
    columns = tuple(_column_of(column) for column in entry["columns"])
    sums: npt.NDArray[np.uint32] = np.frombuffer(bytes.fromhex(str(entry["crc32"])), ">u4")
    index = SplitIndex(int(entry["block"]), columns, tuple(sums.tolist()))
    if len(index.crc32) != index.blocks:
        raise ValueError(f"{len(index.crc32)} checksums of {index.blocks} blocks")
    return index


def _column_of(plain: dict[str, Any]) -> Column:
    files, rows, offsets = (tuple(plain[name]) for name in ("files", "rows", "offsets"))
    return Column(files, rows, offsets, str(plain["dtype"]), int(plain["width"]))


def _hexadecimal(sums: Sequence[int]) -> str:
    return np.asarray(sums, ">u4").tobytes().hex()


def _fill(folder: Path, name: str, begin: int, buffer: memoryview) -> None:
    with (folder / name).open("rb") as file:
        file.seek(begin)
        file.readinto(buffer)
