# SPDX-License-Identifier: Apache-2.0
"""Several batches in one message of a loader's worker: passing a message takes longer than reading a small batch.

Torch's queues take some 0.6 ms of CPU time for a message, of whatever size, where reading 256 rows of 128 tokens takes
0.4 ms. So a worker gets the indices of several batches at once, loads each as if it were requested alone, and sends them
together; the training process returns them one by one.

The batches must depend on their indices only, not on the worker that loads them or on its random numbers: which worker
loads which batch depends on timing. The states of the workers are therefore neither recorded nor
restored when such a loader is tracked. A dataset declares such batches by an attribute; otherwise each is a message.

The first messages of an iteration hold one batch each, so that training starts as early, and show how large a
batch is and how long it takes. Slow batches are not grouped, so that all workers share the load; neither are
large ones, and those that are not sent within the message.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker.data.handover import MOST, size_of
from lightning_sagemaker.data.loader import BegunLate
from lightning_sagemaker.data.slots import Slots
from lightning_sagemaker.data.workers import leave_alone_what_is_inherited

require(_MultiProcessingDataLoaderIter, "_next_data", "_next_index", "_reset")

_SECONDS = 0.01
"""Maximum seconds to load a message's batches: the message itself is cheap in comparison, and other workers have work."""
_RECENT = 8
"""Number of messages of which the fastest counts, as other load on the machine only slows them down."""


class GroupedLoader(BegunLate):
    """A loader of complete batches (``batch_size=None``) whose workers send several of them in one message.

    They do so if the dataset's attribute ``depends_on_indices_only`` is true, as for those of the recipes.

    Attributes:
        batches_per_message: Maximum number of batches in a message; with 1 the loader iterates as torch's.

    """

    batches_per_message: int = 8

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if not self.num_workers or not is_grouped(self):
            return super()._get_iterator()
        self.check_worker_number_rationality()
        leave_alone_what_is_inherited()
        return InGroups(self)


def is_grouped(loader: DataLoader[object]) -> bool:
    """Whether a loader's workers send several batches in one message."""
    is_complete = loader.batch_size is None and loader.batch_sampler is None
    says_so = bool(getattr(loader.dataset, "depends_on_indices_only", False))
    return says_so and is_complete and getattr(loader, "batches_per_message", 1) > 1


@dataclass
class Parcel:
    """Batches in one message.

    Attributes:
        batches: The batches, with an error in place of a batch that could not be loaded.
        largest: Bytes of the largest batch; None if not all are sent within the message.
        seconds: Seconds that loading them took.

    """

    batches: list[object]
    largest: int | None
    seconds: float

    def pin_memory(self) -> Parcel:
        """Pin the batches; called by the loader's pinning thread."""
        pinned = [one if isinstance(one, ExceptionWrapper) else pin_memory(one) for one in self.batches]  # type: ignore[no-untyped-call]
        return replace(self, batches=pinned)


class _Making(Dataset[Parcel]):
    """Replaces a worker's dataset and ``collate_fn``: loads several batches, each as if it were requested alone."""

    def __init__(self, dataset: Dataset[object], collate: Callable[..., object], slots: Slots | None) -> None:
        self._dataset, self._collate, self._slots = dataset, collate, slots

    def __getitem__(self, group: Sequence[object]) -> Parcel:
        begin = time.perf_counter()
        batches = [self._made(indices) for indices in group]
        sizes = [size for size in map(size_of, batches) if size is not None]
        largest = max(sizes) if len(sizes) == len(batches) else None
        seconds = time.perf_counter() - begin
        info = get_worker_info()
        if self._slots is None or info is None or largest is None:
            return Parcel(batches, largest, seconds)
        return Parcel(self._slots.put(batches, info.id), largest, seconds)

    def _made(self, indices: object) -> object:
        try:
            return self._collate(self._dataset[indices])
        except Exception:
            info = get_worker_info()
            return ExceptionWrapper(where=f"in DataLoader worker process {None if info is None else info.id}")  # type: ignore[no-untyped-call]


def _as_it_is(parcel: object) -> object:
    return parcel


class _Beginning(_BaseDataLoaderIter):
    """Inserted between torch's iterator with workers and its base class, to replace the workers' arguments."""

    def __init__(self, loader: DataLoader[object]) -> None:
        super().__init__(loader)
        require(self, "_dataset", "_collate_fn", "_sampler_iter", "_num_yielded")
        self._slots = Slots(loader.num_workers, loader.prefetch_factor or 1, MOST)
        self._dataset, self._collate_fn = _Making(self._dataset, self._collate_fn, self._slots), _as_it_is


class InGroups(_MultiProcessingDataLoaderIter, _Beginning):
    """Torch's iterator with workers, of a :class:`GroupedLoader`."""

    def __init__(self, loader: GroupedLoader) -> None:
        self._most = loader.batches_per_message
        super().__init__(loader)

    def _reset(self, loader: DataLoader[object], first_iter: bool = False) -> None:
        self._count = self._largest = 1
        self._opened: deque[object] = deque()
        self._recent: deque[float] = deque(maxlen=_RECENT)
        super()._reset(loader, first_iter)

    def _next_index(self) -> list[object]:
        first = super()._next_index()  # type: ignore[no-untyped-call]
        return [first, *islice(self._sampler_iter, self._count - 1)]

    def __next__(self) -> object:
        if not self._opened:
            return super().__next__()
        self._num_yielded += 1  # torch's method also opens a range of the profiler, 5 us; here once per message
        return self._next_opened()

    def _next_data(self) -> object:  # type: ignore[override]
        if not self._opened:
            parcel: Parcel = super()._next_data()  # type: ignore[no-untyped-call]
            self._opened.extend(parcel.batches)
            self._count = self._fitting(parcel)
        return self._next_opened()

    def _next_opened(self) -> object:
        one = self._opened.popleft()
        if isinstance(one, ExceptionWrapper):
            one.reraise()  # type: ignore[no-untyped-call]
        return one

    def _fitting(self, parcel: Parcel) -> int:
        """Number of batches like these that fit into a message."""
        if parcel.largest is None:
            return 1
        self._largest = max(self._largest, parcel.largest)
        self._recent.append(parcel.seconds / len(parcel.batches))
        return max(1, int(min(self._most, MOST / self._largest, _SECONDS / max(min(self._recent), 1e-9))))
