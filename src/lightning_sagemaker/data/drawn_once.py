# SPDX-License-Identifier: Apache-2.0
"""Loaders with their own state, as ``torchdata``'s, begin an order more often where they load one than in a fresh epoch.

A sampler draws another order each time, from its generator: here as many as in the run that was interrupted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lightning_sagemaker.data.position import Position, Watch, has_state


@contextlib.contextmanager
def drawn_once(watched: Watch, resumed: Position | None) -> Iterator[Callable[[], None]]:
    """Context in which a loader starts an iteration, in the order that it would have without an interruption.

    Its value starts anew with the orders, as the loader begins another epoch.

    Args:
        watched: Watch of the loader; a sampler that has a state is left as it is.
        resumed: What the loader has loaded, if it has.

    """
    batches = getattr(watched.loader, "batch_sampler", None) if has_state(watched.loader) else None
    sampler = getattr(batches, "sampler", None)
    if sampler is None or hasattr(sampler, "state_dict"):
        yield lambda: None
        return
    stand_in = _Orders(sampler, None if resumed is None else resumed.get("begun", 1))
    batches.sampler = stand_in  # type: ignore[union-attr]
    try:
        yield stand_in.start
    finally:
        batches.sampler = sampler  # type: ignore[union-attr]
        watched.begun = stand_in.end()


class _Orders:
    """Stands in for a sampler: draws ``number`` orders, and then repeats the last one."""

    def __init__(self, sampler: Iterable[Any], number: int | None) -> None:
        self._sampler, self._number = sampler, number
        self._order: Iterator[Any] = iter(())
        self._seen: list[Any] = []
        self._begun = 0

    def start(self) -> None:
        """Forget the orders so far."""
        self._begun = 0

    def end(self) -> int:
        """Draw an order for each iterator from now on; returns the number of orders so far."""
        self._number, number = None, self._number
        return self._begun if number is None else number

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        self._begun += 1
        if self._number is None or self._begun <= self._number:
            self._order, self._seen = iter(self._sampler), []
        return self._order if hasattr(self._order, "state_dict") else self._again(self._order, self._seen)

    def _again(self, order: Iterator[Any], seen: list[Any]) -> Iterator[Any]:
        yield from seen
        for index in order:
            if self._number is not None:
                seen.append(index)
            yield index
