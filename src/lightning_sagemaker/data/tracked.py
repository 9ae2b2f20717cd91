# SPDX-License-Identifier: Apache-2.0
"""Tracks loaders of any kind, and restores their positions, without changes to the script.

A ``DataLoader`` draws the same order again, skips the consumed batches without reading their samples, assigns the next
one to the worker whose turn it is, and each worker continues its own random sequence. An ``IterableDataset``, which has
no order, is read again from the beginning. For a loader with its own ``state_dict`` and ``load_state_dict``, such as
``torchdata``'s, these are used, on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker.checkpoint.random_state import RandomState, random_state, restore_random_state
from lightning_sagemaker.data import workers
from lightning_sagemaker.data.carried import carrying
from lightning_sagemaker.data.changing import ChangingIterator, begin_epoch
from lightning_sagemaker.data.drawn_once import drawn_once
from lightning_sagemaker.data.grouped import InGroups, is_grouped
from lightning_sagemaker.data.in_order import InOrder, report_order
from lightning_sagemaker.data.position import WATCH, Position, Watch, has_state
from lightning_sagemaker.data.run_late import begin_after_last, end_after_last, is_after_last, length_of, runs_late

_END = object()

require(DataLoader, "_get_iterator", "_index_sampler")
require(_MultiProcessingDataLoaderIter, "_try_put_index", "_reset", "_get_data")


def watch(loader: Any, report: Callable[[str], None]) -> tuple[Any, Watch]:
    """Track a loader from its next iteration on.

    Args:
        loader: An iterable that is iterated once an epoch. The class of a ``DataLoader`` is replaced by a subclass.
        report: Called with a message if the order cannot be restored.

    Returns:
        The loader, or a wrapper to iterate instead, and its watch.

    """
    found = getattr(loader, WATCH, None)
    if isinstance(found, Watch):
        return loader, found
    watched = Watch(loader, report)
    if not isinstance(loader, DataLoader):
        return Foreign(loader, watched), watched
    report_order(loader, report)
    mixin = _Seeking if iterates_as_torch(kind := type(loader)) else _Replaying
    setattr(loader, WATCH, watched)
    loader.__class__ = type(kind.__name__, (mixin, kind), {"__module__": kind.__module__, "_kind": kind})
    return loader, watched


def release(loader: Any) -> None:
    """Restore a tracked loader."""
    if isinstance(loader, (_Seeking, _Replaying)):
        if isinstance(loader._iterator, _InWorkers):  # it depends on its watch
            loader._iterator._shutdown_workers()
            loader._iterator = None
        loader.__class__ = loader._kind
        delattr(loader, WATCH)


def catch_up(watched: Watch, position: Position) -> None:
    """Restore persistent workers to their state at an epoch's end; the next iteration starts with them."""
    watched.seek(position)
    iterator = iter(watched.loader)
    iterator = getattr(iterator, "begun", iterator)
    if isinstance(iterator, _Counting):
        iterator.catch_up()


def iterates_as_torch(kind: type) -> bool:
    """Whether a class of loaders iterates as torch's does, or declares that it does."""
    names = ("__iter__", "_get_iterator", "_index_sampler")
    own = all(getattr(kind, name) is getattr(DataLoader, name) for name in names)
    return own or bool(getattr(kind, "iterates_as_torch", False))


class _Order:
    """Replaces a loader's sampler."""

    def __init__(self, loader: _Seeking, sampler: Any) -> None:
        self._loader, self._sampler = loader, sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        self._loader._indices = _Indices(self._loader, self._sampler)
        return self._loader._indices


class _Indices(Iterator[Any]):
    """The order of an iteration: as in torch it starts with the first batch, unless started earlier."""

    def __init__(self, loader: _Seeking, sampler: Any) -> None:
        self._loader, self._sampler = loader, sampler
        self._order: Iterator[Any] | None = None
        self._number = 0

    def begin(self) -> Iterator[Any]:
        if self._order is None:
            wanted, self._loader._wanted = self._loader._wanted, None
            self._number = 0 if wanted is None else wanted["yielded"]
            self._order = getattr(self._loader, WATCH).indices(self._sampler, wanted)
        return self._order

    def __next__(self) -> Any:
        batch = next(self.begin())
        self._number += 1
        return getattr(self._loader, WATCH).mark(batch, self._number - 1)


class _Seeking(InOrder):
    """Mixed into the class of a loader that iterates like torch's."""

    _kind: Any
    _wanted: Position | None = None
    _indices: _Indices | None = None

    @property
    def _index_sampler(self) -> Any:
        return _Order(self, super()._index_sampler)

    def __iter__(self) -> Any:
        watched: Watch = getattr(self, WATCH)
        if watched.deferred:
            return iter(())
        if self.persistent_workers and self._iterator is not None:
            if watched.is_sought and isinstance(self._iterator, _InWorkers):  # its workers are at another position
                self._iterator._shutdown_workers()
                self._iterator = None
            else:
                watched.begin_again()
        if getattr(self, "workers_wanted", None) is not None:
            return ChangingIterator(self, begin_epoch(self))
        return DataLoader.__iter__(self)

    def _get_iterator(self) -> Any:
        watched: Watch = getattr(self, WATCH)
        self._wanted = wanted = watched.begin_birth()
        try:
            iterator = self._begun(watched, wanted)
        finally:
            watched.end_birth()
        if wanted is not None and self._indices is not None:
            self._indices.begin()  # even without another batch, as the next epoch's order depends on these draws
            iterator.catch_up()
        return iterator

    def _begun(self, watched: Watch, wanted: Position | None) -> Any:
        if not self.num_workers:
            return _InProcess(self, wanted)
        goes_on = wanted is not None and not watched.is_iterable
        states = {} if wanted is None else wanted["states" if goes_on else "began"]
        states = {int(worker): state for worker, state in states.items()}
        kind, carried = (_InGroups, None) if is_grouped(self) else (_InWorkers, states)
        with carrying(self, carried), workers.signals_held(self.multiprocessing_context):
            return kind(self, wanted if goes_on else None, None if goes_on else wanted)


class _Counting:
    """Mixed into an iterator: counts batches, and re-reads consumed batches of data that cannot be skipped."""

    def begin_counting(self, loader: Any, again: Position | None) -> None:
        """Called before the iterator is created."""
        self._watch: Watch = getattr(loader, WATCH)
        self._again = again if again is not None and again["yielded"] else None
        self._ahead: Any = None
        self._notes = self._watch.is_iterable and not loader.num_workers

    def catch_up(self) -> None:
        """Re-read the consumed batches, unless that has been done."""
        if self._again is None:
            return
        wanted, self._again = self._again, None
        outer = random_state()
        if wanted["order"] is not None:
            self._watch.capture.put(wanted["order"])
        for _ in range(wanted["yielded"]):
            self._watch.give(super().__next__())  # type: ignore[misc]
        restore_random_state(outer)
        self._ahead = wanted["ahead"]

    def __next__(self) -> Any:
        self.catch_up()
        if self._ahead is not None:  # it was drawn with earlier random states than training's
            restore_random_state(self._ahead)
            self._ahead = None
        before = random_state() if self._notes else None
        return self._watch.give(super().__next__(), before)  # type: ignore[misc]


class _InProcess(_Counting, _SingleProcessDataLoaderIter):
    """Batches created in the training process."""

    def __init__(self, loader: Any, wanted: Position | None) -> None:
        is_iterable = getattr(loader, WATCH).is_iterable
        self.begin_counting(loader, wanted if is_iterable else None)
        super().__init__(loader)


class _InWorkers(_Counting, _MultiProcessingDataLoaderIter):
    """Batches created by workers; the first is requested from the worker whose turn it is."""

    def __init__(self, loader: Any, wanted: Position | None, again: Position | None) -> None:
        self.begin_counting(loader, again)
        self._turns = wanted["yielded"] % loader.num_workers if wanted is not None else 0
        super().__init__(loader)
        workers.end_quickly(self)

    def _get_data(self) -> Any:
        found = super()._get_data()  # type: ignore[no-untyped-call]
        self._watch.receive(found)
        return found

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        if not first_iter:
            self._watch.have_begun_again()

    def _try_put_index(self) -> None:
        for _ in range(self._turns):
            next(self._worker_queue_idx_cycle)
        self._turns = 0
        super()._try_put_index()


class _InGroups(_InWorkers, InGroups):
    """Several batches in a message; they depend on their indices only, so any worker may load the first."""


class _Replaying(InOrder):
    """Mixed into the class of a loader with a custom iteration."""

    _kind: Any
    _seeds: RandomState | None = None

    def __iter__(self) -> Any:
        return _begin(getattr(self, WATCH), super().__iter__)

    def _get_iterator(self) -> Any:
        """A generator creates its iterator, which draws a seed for the workers, with the first batch only."""
        seeds, self._seeds = self._seeds, None
        if seeds is None:
            return super()._get_iterator()
        outer = random_state()
        restore_random_state(seeds)
        iterator = super()._get_iterator()
        restore_random_state(outer)
        return iterator


class Foreign:
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
    passed, wanted = watched.passed, watched.begin_birth()
    try:
        if wanted is not None and wanted["own"] is not None and wanted.get("ended", False):
            watched.skip(wanted)  # its state is also where the next epoch begins
            watched.end()
            return iter(())
        with drawn_once(watched, wanted or passed):
            batches = begin()
    finally:
        watched.end_birth()
    if wanted is not None and has_state(watched.loader):
        watched.skip(wanted)
        if runs_late(batches) and isinstance(watched.loader, _Replaying):
            watched.loader._seeds = wanted["birth"]["random"]
        if is_after_last(watched, batches, wanted):
            begin_after_last(watched, batches, wanted)
            return iter(())
    elif wanted is not None:
        _read_again(watched, batches, wanted)
    return _counted(watched, batches, wanted)


def _read_again(watched: Watch, batches: Iterator[Any], wanted: Position) -> None:
    """Re-read consumed batches now rather than with the next one, which may not exist: the next epoch depends on them."""
    outer = random_state()
    watched.begin_order(wanted)
    for _ in range(wanted["yielded"]):
        watched.give(next(batches))
    restore_random_state(outer)


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
