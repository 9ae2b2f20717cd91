# SPDX-License-Identifier: Apache-2.0
"""Tracks loaders of any kind, and restores their positions, without changes to the script.

A ``DataLoader`` draws the same order again, skips the consumed batches without reading their samples, assigns the next
one to the worker whose turn it is, and each worker continues its own random sequence. An ``IterableDataset``, which has
no order, is read again from the beginning. For a loader with its own ``state_dict`` and ``load_state_dict``, such as
``torchdata``'s, these are used, on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state
from lightning_sagemaker.data import workers
from lightning_sagemaker.data.carried import carrying
from lightning_sagemaker.data.changing import ChangingIterator, begin_epoch
from lightning_sagemaker.data.grouped import InGroups, is_grouped
from lightning_sagemaker.data.in_order import InOrder, report_order
from lightning_sagemaker.data.position import WATCH, Position, Watch
from lightning_sagemaker.data.redrawn import Begun
from lightning_sagemaker.data.replayed import Replaying, TrackedIterable
from lightning_sagemaker.data.worker_states import end_workers, has_workers, loaders_within, put_within, release_within

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
        watched.is_custom, watched.within = True, loaders_within(loader)
        if any(has_workers(one) for one in watched.within):
            report(
                f"{type(loader).__name__} has started workers before the training: a resumed run starts them anew, and may"
                " read other samples. HINT: create the iterator with the first batch, as by yield in __iter__."
            )
        for place, one in enumerate(watched.within):
            put_within(one, watched.workers, place)
        watched.iterable = TrackedIterable(loader, watched)
        return watched.iterable, watched
    report_order(loader, report)
    mixin = _Seeking if iterates_as_torch(kind := type(loader)) else Replaying
    watched.is_custom = mixin is Replaying
    setattr(loader, WATCH, watched)
    loader.__class__ = type(kind.__name__, (mixin, kind), {"__module__": kind.__module__, "_kind": kind})
    return loader, watched


def release(loader: Any) -> None:
    """Restore a tracked loader."""
    for one in () if isinstance(loader, DataLoader) else loaders_within(loader):
        release_within(one)
    if isinstance(loader, (_Seeking, Replaying)):
        if isinstance(loader, Replaying) or isinstance(loader._iterator, _InWorkers):  # it depends on its watch
            end_workers(loader)
        loader.__class__ = loader._kind
        delattr(loader, WATCH)


def catch_up(watched: Watch, position: Position) -> None:
    """Restore persistent workers to their state at an epoch's end; the next iteration starts with them."""
    watched.seek(position)
    iterator = iter(watched.iterable)
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
    """The order of an iteration: it is drawn as in torch, or with the first batch, unless started earlier."""

    def __init__(self, loader: _Seeking, sampler: Any) -> None:
        self._loader, self._sampler = loader, sampler
        self._order: Iterator[Any] | None = None
        self._number = 0
        # torch begins an order twice for workers: one that is drawn then is drawn twice
        self._begun = None if loader._wanted is not None else Begun(getattr(loader, WATCH).capture, sampler)

    def begin(self) -> Iterator[Any]:
        if self._order is None:
            wanted, self._loader._wanted = self._loader._wanted, None
            self._number = 0 if wanted is None else wanted["yielded"]
            self._order = getattr(self._loader, WATCH).indices(self._sampler, wanted, self._begun)
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
            if watched.is_sought and isinstance(self._iterator, _InWorkers):
                end_workers(self)
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
        self._notes = not loader.num_workers and (self._watch.is_iterable or self._watch.is_prefetched)

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
        self._watch.have_read_again(wanted)

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
        if wanted is not None and not is_iterable:
            self._ahead = wanted["ahead"]
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
        self._watch.workers.receive(found)
        return found

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        if not first_iter:
            self._watch.workers.begin_again()

    def _try_put_index(self) -> None:
        for _ in range(self._turns):
            next(self._worker_queue_idx_cycle)
        self._turns = 0
        super()._try_put_index()


class _InGroups(_InWorkers, InGroups):
    """Several batches in a message; they depend on their indices only, so any worker may load the first."""
