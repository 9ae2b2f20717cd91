# SPDX-License-Identifier: Apache-2.0
"""Records on disk instead of in memory, so that a table may be larger than memory."""

from __future__ import annotations

import os
import pickle
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import IO, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

Record = dict[str, Any]
Indices = npt.NDArray[np.int64]

_BLOCK = 256
"""Records that are written and read together."""

_Source = TypeVar("_Source")
_Result = TypeVar("_Result")


class TableWriter:
    """Writes the records of a table to a temporary file, which has no name and is gone when nothing refers to it.

    Args:
        folder: Folder of the file. ``None``: the system's for temporary files.

    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (the table keeps it open)
        self._columns: dict[str, int] = {}
        self._block: list[tuple[Any, ...]] = []
        self._begins = array("q")
        self._count = 0

    def __len__(self) -> int:
        return self._count + len(self._block)

    def extend(self, records: Iterable[Mapping[str, Any]]) -> list[str]:
        """Add records; a column that a record lacks is ``None``. Returns the columns of these records."""
        names: dict[str, None] = {}
        for record in records:
            if record.keys() != names.keys():
                names.update(dict.fromkeys(record))
                for name in record:
                    self._columns.setdefault(name, len(self._columns))
            self._block.append(tuple(map(record.get, self._columns)))
            if len(self._block) == _BLOCK:
                self._flush()
        return list(names)

    def finish(self) -> Table:
        """The table of all records; none can be added afterwards."""
        self._flush()
        self._begins.append(self._file.tell())
        self._file.flush()
        return Table(_Blocks(self._file, self._begins, tuple(self._columns)), np.arange(self._count), {})

    def _flush(self) -> None:
        if self._block:
            self._begins.append(self._file.tell())
            self._file.write(pickle.dumps(self._block, pickle.HIGHEST_PROTOCOL))
            self._count += len(self._block)
            self._block = []


class _Blocks:
    """The written file.

    Args:
        file: File, only readable by this process.
        begins: Offset of each block, and the end of the last.
        columns: Names of the columns.

    """

    def __init__(self, file: IO[bytes], begins: Sequence[int], columns: tuple[str, ...]) -> None:
        self._file, self._begins, self.columns = file, begins, columns

    def read(self, number: int) -> list[tuple[Any, ...]]:
        """The values of a block's records; fewer than there are columns, if others came later."""
        begin, end = self._begins[number : number + 2]
        found: list[tuple[Any, ...]] = pickle.loads(os.pread(self._file.fileno(), end - begin, begin))
        return found


class Table(Sequence[Record]):
    """Some records of a written file, in any order. A record is a new dictionary each time it is read.

    Args:
        blocks: The file.
        rows: Numbers of the records in the file.
        replaced: Name of a column -> values of these records that replace those in the file.

    """

    def __init__(self, blocks: _Blocks, rows: Indices, replaced: Mapping[str, Sequence[Any]]) -> None:
        self._blocks, self._rows, self._replaced = blocks, rows, replaced

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], folder: Path | None = None) -> Table:
        """The table of some records."""
        writer = TableWriter(folder)
        writer.extend(records)
        return writer.finish()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self._blocks.columns

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Table: ...

    def __getitem__(self, index: int | slice) -> Record | Table:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        place = range(len(self))[index]
        return next(iter(self.take(np.array([place]))))

    def __iter__(self) -> Iterator[Record]:
        replaced = zip(*self._replaced.values(), strict=True) if self._replaced else repeat(())
        names = tuple(self._replaced)
        for values, others in zip(self._values(), replaced, strict=False):
            record = dict(zip(self.columns, values, strict=False))
            if len(record) < len(self.columns):
                record = {name: record.get(name) for name in self.columns}
            record.update(zip(names, others, strict=True))
            yield record

    def take(self, places: Indices) -> Table:
        """The table of the records at ``places`` of this one."""
        replaced = {name: [values[place] for place in places] for name, values in self._replaced.items()}
        return Table(self._blocks, self._rows[places], replaced)

    def replace(self, column: str, values: Sequence[Any]) -> Table:
        """The same table with other values in a column; they are kept in memory."""
        return Table(self._blocks, self._rows, {**self._replaced, column: values})

    def _values(self) -> Iterator[tuple[Any, ...]]:
        current, block = -1, list[tuple[Any, ...]]()
        for begin in range(0, len(self._rows), _BLOCK):
            for row in self._rows[begin : begin + _BLOCK].tolist():
                number, place = divmod(row, _BLOCK)
                if number != current:
                    current, block = number, self._blocks.read(number)
                yield block[place]


class Mapped(Sequence[_Result]):
    """A function's results for the elements of a sequence, computed each time they are read.

    Args:
        function: Function of an element.
        source: The elements.

    """

    def __init__(self, function: Callable[[_Source], _Result], source: Sequence[_Source]) -> None:
        self._function: Callable[[Any], _Result] = function
        self._source: Sequence[Any] = source

    def __len__(self) -> int:
        return len(self._source)

    @overload
    def __getitem__(self, index: int) -> _Result: ...

    @overload
    def __getitem__(self, index: slice) -> Mapped[_Result]: ...

    def __getitem__(self, index: int | slice) -> _Result | Mapped[_Result]:
        if isinstance(index, slice):
            return Mapped(self._function, self._source[index])
        return self._function(self._source[index])

    def __iter__(self) -> Iterator[_Result]:
        return map(self._function, self._source)
