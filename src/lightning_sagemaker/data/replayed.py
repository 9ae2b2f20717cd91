# SPDX-License-Identifier: Apache-2.0
"""Tracks loaders whose batches cannot be skipped by their indices: they restore their own state, or are read again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from lightning_sagemaker.checkpoint.random_state import RandomState, random_state, restore_random_state
from lightning_sagemaker.data.drawn_once import drawn_once
from lightning_sagemaker.data.in_order import InOrder
from lightning_sagemaker.data.position import WATCH, Position, Watch, has_state
from lightning_sagemaker.data.run_late import begin_after_last, end_after_last, is_after_last, length_of, runs_late
from lightning_sagemaker.data.starting import due_of, not_restarting, start_at, take_end
from lightning_sagemaker.data.worker_states import end_workers, with_states

_END = object()


class Replaying(InOrder):
    """Mixed into the class of a loader with a custom iteration."""

    _kind: Any
    _seeds: RandomState | None = None
    _created = 0

    def __iter__(self) -> Any:
        return _begin(getattr(self, WATCH), super().__iter__)

    def _get_iterator(self) -> Any:
        """A generator creates its iterator, which draws a seed for the workers, with the first batch only."""
        states = getattr(self, WATCH).workers
        states.begins_again()
        self._created += 1
        seeds, self._seeds = self._seeds, None
        if seeds is None:
            return with_states(states, self, super()._get_iterator)
        outer = random_state()
        restore_random_state(seeds)
        iterator = with_states(states, self, super()._get_iterator)
        restore_random_state(outer)
        return iterator


class TrackedIterable:
    """Wraps an iterable that is not a ``DataLoader``, and tracks it."""

    def __init__(self, inner: Iterable[Any], watched: Watch) -> None:
        self._inner = inner
        setattr(self, WATCH, watched)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return _begin(getattr(self, WATCH), lambda: iter(self._inner))


def _begin(watched: Watch, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Start a loader with its own state, or one that is re-read."""
    if watched.deferred:
        return iter(())
    if watched.is_sought:
        for one in (watched.loader, *watched.within):
            end_workers(one)
    passed, wanted = watched.passed, watched.begin_birth()
    watched.workers.due = due_of(watched, wanted)
    try:
        if wanted is not None and wanted["own"] is not None and wanted.get("ended", False):
            watched.skip(wanted)  # its state is also where the next epoch begins
            watched.end()
            take_end(watched, wanted, begin)
            return iter(())
        if wanted is None and passed is not None:
            start_at(watched, passed)
        with drawn_once(watched, wanted or passed) as start_orders, not_restarting(watched.loader):
            created = getattr(watched.loader, "_created", 0)
            watched.workers.begins_again = _undoing(watched, start_orders) if passed is not None else lambda: None
            batches = begin()
            watched.workers.begins_again = lambda: None
    finally:
        watched.end_birth()
    if wanted is not None and has_state(watched.loader):
        watched.skip(wanted)
        if isinstance(watched.loader, DataLoader) and not watched.is_iterable:  # which reads nothing again
            watched.capture.put_data(wanted["now"])
        if runs_late(batches) and isinstance(watched.loader, Replaying) and watched.loader._created == created:
            watched.loader._seeds = wanted["birth"]["random"]
        if is_after_last(watched, batches, wanted):
            begin_after_last(watched, batches, wanted)
            watched.passed = wanted
            return iter(())
    elif wanted is not None:
        _read_again(watched, batches, wanted)
    return _counted(watched, batches, wanted)


def _undoing(watched: Watch, start_orders: Callable[[], None]) -> Callable[[], None]:
    """A loader that takes a state of an epoch's end creates an iterator for it, and then one for the next epoch.

    Returns:
        Called before each of these: before the second it undoes what the first has drawn.

    """
    before, number = watched.capture.take(), itertools.count()

    def begins() -> None:
        if next(number):
            watched.capture.put(before)
            start_orders()

    return begins


def _read_again(watched: Watch, batches: Iterator[Any], wanted: Position) -> None:
    """Re-read consumed batches now rather than with the next one, which may not exist: the next epoch depends on them."""
    outer = random_state()
    watched.begin_order(wanted)
    for _ in range(wanted["yielded"]):
        watched.give(next(batches))
    restore_random_state(outer)
    watched.have_read_again(wanted)


def _counted(watched: Watch, batches: Iterator[Any], wanted: Position | None) -> Iterator[Any]:
    loader = watched.loader
    number, length = 0 if wanted is None else wanted["yielded"], length_of(loader)
    prefetches = has_state(loader) and length is None  # of such a loader Lightning fetches a batch ahead
    draws = not getattr(loader, "num_workers", 0)
    if wanted is None:
        watched.begin_order(None)
    elif wanted["ahead"] is not None:  # it was drawn with earlier random states than training's
        restore_random_state(wanted["ahead"])
    while True:
        before, own = random_state() if draws else None, watched.own_state() if prefetches else None
        batch = next(batches, _END)
        if batch is _END:
            watched.end()
            return
        number += 1
        if wanted is not None and has_state(loader):
            end_after_last(batches, number, length)
        yield watched.give(batch, before, own)
