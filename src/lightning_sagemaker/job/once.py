# SPDX-License-Identifier: Apache-2.0
"""Caches the job of this process until a variable that it depends on changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Caches a function of ``os.environ`` until one of the variables that it read changes.

    Scripts set variables after the import, Lightning sets its own for the processes that it starts, and a forked
    process is given a rank: the cached value must not be older.

    Args:
        read: The function; called with the variables.

    """

    def __init__(self, read: Callable[[Mapping[str, str]], T]) -> None:
        self._read = read
        self._read_values: Mapping[str, str | None] | None = None
        self._found: T

    def __call__(self) -> T:
        """The cached value; computed if needed."""
        if self._read_values is None or any(os.environ.get(name) != value for name, value in self._read_values.items()):
            variables = _Recorded()
            self._found = self._read(variables)
            self._read_values = variables.read
        return self._found


class _Recorded(Mapping[str, str]):
    """``os.environ``, with a record of the names that were read."""

    def __init__(self) -> None:
        self.read: dict[str, str | None] = {}

    def __getitem__(self, name: str) -> str:
        self.read[name] = os.environ.get(name)
        return os.environ[name]

    def __iter__(self) -> Iterator[str]:
        raise TypeError("a job is read from variables by their names")

    def __len__(self) -> int:
        raise TypeError("a job is read from variables by their names")
