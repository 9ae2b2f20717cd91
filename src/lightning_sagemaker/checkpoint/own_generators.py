# SPDX-License-Identifier: Apache-2.0
"""Finds a script's own random number generators: in attributes, containers and closures, and in globals of its code.

The search is breadth-first from some objects, and reads attributes only. Arrays, tables and
tensors are not searched, nor more than the first entries of a container.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from time import perf_counter
from typing import NamedTuple

from lightning_sagemaker.checkpoint.generators import (
    RandomNumbers,
    generator_state,
    is_generator,
    is_global,
    restore_generator,
)
from lightning_sagemaker.checkpoint.object_parts import Part, is_searched, parts_of

_MOST = 10_000
"""Maximum objects of a search."""
_SHARE = 0.01
"""Fraction of the time for searches after the first: a script may create a generator when it first needs it."""


class _Place(NamedTuple):
    """Place of a generator, where it may be replaced, like one that is created for each epoch."""

    path: str
    part: Part


class OwnGenerators:
    """Saves and restores the generators that are reachable from some objects.

    Args:
        roots: Returns the objects, by name.
        leaves: Names of modules of classes that are not searched.

    """

    def __init__(self, roots: Callable[[], Iterable[tuple[str, object]]], leaves: tuple[str, ...] = ()) -> None:
        self._roots, self._leaves = roots, leaves
        self._places: list[_Place] = []
        self._ended, self._took = -math.inf, 0.0

    def look(self) -> None:
        """Search."""
        began = perf_counter()
        self._places = [*_search(self._roots(), self._leaves)]
        self._ended = perf_counter()
        self._took = self._ended - began

    def now(self) -> Iterator[tuple[str, RandomNumbers]]:
        """The current generators, by path."""
        if perf_counter() - self._ended > self._took / _SHARE:
            self.look()
        for path, part in self._places:
            value = part.value()
            if is_generator(value):
                yield path, value

    def take(self, but: Collection[int] = ()) -> dict[str, object]:
        """The generators' states, by path, except for generators of the ids ``but``."""
        return {path: generator_state(generator) for path, generator in self.now() if id(generator) not in but}

    def put(self, states: Mapping[str, object], but: Collection[int] = ()) -> None:
        """Restore :meth:`take`."""
        if states:
            self.look()  # a hook may have created one since
        for path, generator in self.now() if states else ():
            if path in states and id(generator) not in but:
                restore_generator(generator, states[path])


def _search(roots: Iterable[tuple[str, object]], leaves: tuple[str, ...]) -> Iterator[_Place]:
    seen: set[int] = set()
    known: dict[type, bool] = {}
    pending = deque(_Place(name, Part(name, {name: value}, name)) for name, value in roots)
    while pending and len(seen) < _MOST:
        path, part = place = pending.popleft()
        value = part.value()
        if id(value) in seen:
            continue
        kind = type(value)
        if kind not in known:
            known[kind] = is_searched(kind, leaves)
        if not known[kind]:
            continue
        seen.add(id(value))
        if is_generator(value):
            if not is_global(value):
                yield place
            continue
        for found in parts_of(value):
            name = found.name if found.is_global else f"{path}.{found.name}"
            pending.append(_Place(name, found))
