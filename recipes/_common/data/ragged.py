# SPDX-License-Identifier: Apache-2.0
"""Rows of unequal length on disk: an array of all values and an array of the rows' ends."""

from __future__ import annotations

import shutil
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_sagemaker.recipes._common.data.checked import CheckedFiles

Integers = npt.NDArray[np.int64]

_VALUES = "<i4"
_BUFFER = 1 << 20


class Ragged:
    """Integer rows in a memory map; the file is verified before the first row is read.

    Args:
        files: Files of the folder that :func:`save_ragged` wrote to.
        name: Name of the rows.

    """

    def __init__(self, files: CheckedFiles, name: str) -> None:
        self._files, self._name = files, f"{name}-values.npy"
        self._values = files.map(self._name)
        self._starts = np.concatenate([[0], files.load(f"{name}-ends.npy")])
        self._is_checked = False

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        if not self._is_checked:
            self._files.check([self._name])
            self._is_checked = True
        row: npt.NDArray[Any] = self._values[self._starts[index] : self._starts[index + 1]]
        return row

    @property
    def lengths(self) -> Integers:
        """Length of each row, ``[rows]``."""
        lengths: Integers = np.diff(self._starts)
        return lengths


class RaggedWriter:
    """Writes rows of non-negative integers below 2**31, one after the other.

    Args:
        folder: Folder of the files.
        name: Name of the rows.

    """

    def __init__(self, folder: Path, name: str) -> None:
        self._values, self._ends = folder / f"{name}-values.npy", folder / f"{name}-ends.npy"
        self._unfinished = tempfile.TemporaryFile(dir=folder, buffering=_BUFFER)  # noqa: SIM115 (closed in finish)
        self._counts = array("q")
        self._total = 0

    def append(self, row: Sequence[int] | npt.NDArray[Any]) -> None:
        """Add a row, ``[values]``."""
        self._unfinished.write(np.asarray(row, dtype=_VALUES).tobytes())
        self._total += len(row)
        self._counts.append(self._total)

    def finish(self) -> list[Path]:
        """Write the files; returns them, for the manifest."""
        self._unfinished.seek(0)
        with self._unfinished, self._values.open("wb") as file:
            # As np.save writes it, which needs all values in memory.
            header = {"descr": _VALUES, "fortran_order": False, "shape": (self._total,)}
            np.lib.format.write_array_header_1_0(file, header)
            shutil.copyfileobj(self._unfinished, file, _BUFFER)
        np.save(self._ends, np.array(self._counts, dtype=np.int64))
        return [self._values, self._ends]


def save_ragged(folder: Path, name: str, rows: Iterable[Sequence[int] | npt.NDArray[Any]]) -> list[Path]:
    """Write all rows; see :class:`RaggedWriter`."""
    writer = RaggedWriter(folder, name)
    for row in rows:
        writer.append(row)
    return writer.finish()
