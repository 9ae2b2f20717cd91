# SPDX-License-Identifier: Apache-2.0
"""Loaders with their own state, as ``torchdata``'s, begin an order more often where they load one than in a fresh epoch.

A sampler draws another order each time, from its generator: here as many as in the run that was interrupted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sized

from torch.utils.data import BatchSampler

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
    is_own = batches is not None and not isinstance(batches, BatchSampler)  # it draws its batches itself
    sampler = batches if is_own else getattr(batches, "sampler", None)
    if sampler is None or hasattr(sampler, "state_dict"):
        yield lambda: None
        return
    orders = watched.orders = watched.orders or Orders(sampler)  # the same: iterators that outlive an epoch keep it
    orders.begin(None if resumed is None else resumed.get("begun", 1))
    owner, name = (watched.loader, "batch_sampler") if is_own else (batches, "sampler")
    vars(owner)[name] = orders.stand_in  # torch refuses that a loader's is set
    try:
        yield orders.start
    finally:
        vars(owner)[name] = sampler
        watched.begun = orders.end()


class _StandIn:
    """Stands in for a sampler, whose attributes it has."""

    _orders: Orders
    _sampler: Sized

    def __init__(self, orders: Orders, sampler: Iterable[object]) -> None:
        vars(self).update(_orders=orders, _sampler=sampler)

    def __getattr__(self, name: str) -> object:
        return getattr(vars(self)["_sampler"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._sampler, name, value)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[object]:
        return self._orders.next()


class Orders:
    """The orders of a sampler, for what stands in for it."""

    def __init__(self, sampler: Iterable[object]) -> None:
        self._sampler, self.stand_in = sampler, _StandIn(self, sampler)
        self.begin(None)

    def begin(self, number: int | None) -> None:
        """Draw ``number`` orders from now on, and then repeat the last one."""
        self._number, self._begun = number, 0
        self._order: Iterator[object] = iter(())
        self._seen: list[object] = []

    def start(self) -> None:
        """Forget the orders so far, which were those of the epoch before: the next ones are as in a run that goes on."""
        self.begin(None)

    def end(self) -> int:
        """Draw an order for each iterator from now on; returns the number of orders so far."""
        self._number, number = None, self._number
        return self._begun if number is None else number

    def next(self) -> Iterator[object]:
        """The next order."""
        self._begun += 1
        if self._number is None or self._begun <= self._number:
            self._order, self._seen = iter(self._sampler), []
        return self._order if hasattr(self._order, "state_dict") else self._again(self._order, self._seen)

    def _again(self, order: Iterator[object], seen: list[object]) -> Iterator[object]:
        yield from seen
        for index in order:
            if self._number is not None:
                seen.append(index)
            yield index
