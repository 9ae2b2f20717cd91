# SPDX-License-Identifier: Apache-2.0
"""Random number generators of the script's own: in attributes, containers and closures, and in globals that its code names.

A search follows what is reachable from some objects, the nearest first, and reads attributes only. Arrays, tables and
tensors are not looked into, nor more than the first entries of a container.
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
"""Objects of a search."""
_SHARE = 0.01
"""Of the time that may be spent on searches after the first: a script may make a generator when it first needs it."""


class _Place(NamedTuple):
    """Where a generator was found: it may be replaced there, as one that is made for each epoch."""

    path: str
    part: Part


class OwnGenerators:
    """Those that are reached from some objects.

    Args:
        roots: Returns the objects, by name.
        leaves: Names of modules of classes that are not looked into.

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
        """The generators that are there, by path."""
        if perf_counter() - self._ended > self._took / _SHARE:
            self.look()
        for path, part in self._places:
            value = part.value()
            if is_generator(value):
                yield path, value

    def take(self, but: Collection[int] = ()) -> dict[str, object]:
        """Their states, by path, but for generators of these ids."""
        return {path: generator_state(generator) for path, generator in self.now() if id(generator) not in but}

    def put(self, states: Mapping[str, object], but: Collection[int] = ()) -> None:
        """Restore :meth:`take`."""
        if states:
            self.look()  # a hook may have made one since
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
