# SPDX-License-Identifier: Apache-2.0
"""States of a loader's workers, as their batches arrive; see :mod:`.carried`.

Loaders that create their iterators themselves are included: those with a state of their own, as torchdata's, and those
within another one, as in webdataset's ``WebLoader``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker.checkpoint.static_view import own_attributes
from lightning_sagemaker.data import workers
from lightning_sagemaker.data.captured import Captured
from lightning_sagemaker.data.carried import Carried, carrying
from lightning_sagemaker.data.written import written

require(_MultiProcessingDataLoaderIter, "_get_data", "_next_data", "_reset")

Loader = DataLoader[object]

_MOST = 1 << 16
"""More than the workers of one loader: the numbers of another loader's workers follow."""
_ENTRIES = 64
"""Maximum entries of a list that are searched for loaders: lists of stages are short, and those of samples are not."""


class WorkerStates:
    """States of the workers of a loader, and of loaders within it.

    Args:
        every: Batches between two positions at which a loader with its own state restarts its workers: a state of another
            position is the last one's of these, and some batches.

    Attributes:
        began: Worker -> state before its first batch of this iteration.
        kept: Worker -> state after its last batch that was returned, at the last of these positions.
        due: Worker -> state to start with, for the next workers.
        outlived: Whether the workers of this iteration are those of the last one.
        begins_again: Called before workers that were just started begin another epoch.

    """

    def __init__(self, every: int = 1) -> None:
        self._every = every
        self._returned: dict[int, bytes] = {}
        self._received: dict[int, bytes] = {}  # the same, of batches that are not returned yet, or never
        self.began: dict[int, bytes] = {}
        self.kept: dict[int, bytes] = {}
        self.due: dict[int, Captured] = {}
        self.outlived = False
        self.begins_again: Callable[[], None] = lambda: None

    def start(self, outlived: bool) -> None:
        """Start an iteration, with new workers unless they have outlived the last one."""
        self.outlived = outlived
        if not outlived:
            self.begin({}, {})

    def begin(self, states: dict[str, Captured], began: dict[str, Captured]) -> None:
        """Start with new workers."""
        self.kept = self._returned = written(states)
        self.began, self._received = written(began), dict(self._returned)

    def begin_again(self) -> None:
        """Start another epoch with the same workers, which have dropped the batches that they had prefetched."""
        self.kept = self._returned = self.began = dict(self._received)

    def take(self, batch: object, first: int = 0) -> object:
        """Record a worker's state that a batch carries, and return the batch."""
        if not isinstance(batch, Carried):
            return batch
        if batch.state is not None:
            self._returned = {**self._returned, first + batch.worker: batch.state}
        return batch.batch

    def count(self, returned: int) -> None:
        """Record the number of batches that the iteration has returned."""
        if self._every and returned % self._every == 0:
            self.kept = self._returned

    def receive(self, message: object, first: int = 0) -> None:
        """Record the state in a message from a worker, whether its batch is returned or not."""
        content = message[-1] if isinstance(message, tuple) else None
        content = content[0] if isinstance(content, tuple) and content else content
        if isinstance(content, Carried) and content.state is not None:
            self._received[first + content.worker] = content.state


class _Taking:
    """Mixed into an iterator: takes the workers' states off their batches."""

    _states: WorkerStates
    _first: int

    def _next_data(self) -> object:
        return self._states.take(super()._next_data(), self._first)  # type: ignore[misc]

    def _get_data(self) -> object:
        found: object = super()._get_data()  # type: ignore[misc]
        self._states.receive(found, self._first)
        return found

    def _reset(self, loader: object, first_iter: bool = False, **options: object) -> None:
        if not first_iter:
            self._states.begins_again()
        super()._reset(loader, first_iter, **options)  # type: ignore[misc]
        if not first_iter:
            self._states.begin_again()


def with_states(
    states: WorkerStates, loader: Loader, create: Callable[[], _BaseDataLoaderIter], place: int = 0
) -> _BaseDataLoaderIter:
    """An iterator whose workers start with :attr:`WorkerStates.due` and send their states.

    Args:
        states: The states.
        loader: The loader.
        create: Creates its iterator.
        place: Place of the loader among those within another one.

    """
    first = place * _MOST
    due = {worker - first: state for worker, state in states.due.items() if first <= worker < first + _MOST}
    states.due = {worker: state for worker, state in states.due.items() if worker - first not in due}
    if not loader.num_workers:
        return create()
    generator = loader.generator
    if states.outlived:  # torch drew no seed for workers that had been started before
        loader.generator = torch.Generator()
    try:
        with carrying(loader, due), workers.signals_held(loader.multiprocessing_context):
            iterator = create()
    finally:
        loader.generator = generator
    workers.end_quickly(iterator)
    if all(hasattr(iterator, name) for name in ("_get_data", "_next_data", "_reset")):
        kind = type(iterator)
        vars(iterator).update(_states=states, _first=first)
        iterator.__class__ = type(kind.__name__, (_Taking, kind), {"__module__": kind.__module__})
    return iterator


class Within(DataLoader[object]):
    """Mixed into the class of a loader within another one."""

    _kind: type
    _outer: tuple[WorkerStates, int]

    def _get_iterator(self) -> _BaseDataLoaderIter:
        states, place = self._outer
        return with_states(states, self, super()._get_iterator, place)


def loaders_within(loader: object) -> list[Loader]:
    """The loaders that a loader of another kind iterates over: in its attributes, and in lists there."""
    found: dict[int, Loader] = {}
    for value in _values(loader, 2):
        if isinstance(value, DataLoader):
            found[id(value)] = value
    return [*found.values()]


def _values(owner: object, depth: int) -> Iterator[object]:
    for value in own_attributes(owner).values():
        for one in value[:_ENTRIES] if isinstance(value, (list, tuple)) else (value,):
            yield one
            if depth and not isinstance(one, (DataLoader, type)):
                yield from _values(one, depth - 1)


def put_within(loader: Loader, states: WorkerStates, place: int) -> None:
    """Have the workers of a loader within another one send their states."""
    kind = type(loader)
    facts = {
        "__module__": kind.__module__,
        "_kind": kind,
        "_outer": (states, place),
    }  # not attributes: these are searched
    loader.__class__ = type(kind.__name__, (Within, kind), facts)


def release_within(loader: Loader) -> None:
    """Undo :func:`put_within`."""
    if isinstance(loader, Within):
        end_workers(loader)
        loader.__class__ = loader._kind


def restores_workers(own: object) -> bool:
    """Whether a loader's own state has that of its workers' data, if it has workers; otherwise it reads the data again.

    In the state of torchdata's there is an entry for each worker.
    """
    found = [*_data_states(own)]
    return not found or any(one is not None for one in found)


def _data_states(value: object) -> Iterator[object]:
    for name, entry in value.items() if isinstance(value, dict) else ():
        if name in ("dataset_state", "dataset_iter_state"):
            yield entry
        else:
            yield from _data_states(entry)


def has_workers(loader: object) -> bool:
    """Whether a loader holds an iterator, whose workers outlive an epoch."""
    return isinstance(loader, DataLoader) and getattr(loader, "_iterator", None) is not None


def end_workers(loader: object) -> None:
    """End workers that outlive an epoch, which are at another position than the one to start from."""
    if isinstance(loader, DataLoader):
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
        loader._iterator = None
