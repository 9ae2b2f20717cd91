# SPDX-License-Identifier: Apache-2.0
"""Rows of unequal length on disk: an array of all values and an array of the rows' ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_sagemaker.recipes._common.data.checked import CheckedFiles

Integers = npt.NDArray[np.int64]


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


def save_ragged(folder: Path, name: str, rows: Iterable[Sequence[int] | npt.NDArray[Any]]) -> list[Path]:
    """Write rows of non-negative integers below 2**31; returns the files, for the manifest."""
    arrays: list[npt.NDArray[np.int32]] = [np.asarray(row, dtype=np.int32) for row in rows]
    values, ends = folder / f"{name}-values.npy", folder / f"{name}-ends.npy"
    np.save(values, np.concatenate(arrays) if arrays else np.zeros(0, np.int32))
    np.save(ends, np.cumsum([len(row) for row in arrays], dtype=np.int64))
    return [values, ends]
