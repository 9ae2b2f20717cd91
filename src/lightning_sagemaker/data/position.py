# SPDX-License-Identifier: Apache-2.0
"""A loader's position in its data, and how it is restored.

A loader is tracked while it is iterated: the state that its order was drawn from, the number of consumed batches, and states
of its workers' random number generators, which are sent with the batches. From these :mod:`.tracked` restores an
iteration.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, IterableDataset

from lightning_sagemaker.checkpoint.random_state import equal_states, random_state, restore_random_state
from lightning_sagemaker.data.captured import Capture, Captured
from lightning_sagemaker.data.dealing import as_bits, is_counted, numbers_of
from lightning_sagemaker.data.redrawn import Begun, redrawn
from lightning_sagemaker.data.seen import OTHERS, Seen
from lightning_sagemaker.data.worker_states import Loader, WorkerStates, has_workers, restores_workers
from lightning_sagemaker.data.written import read, read_rest, written_rest

Position = dict[str, Any]
"""Position of a loader, as plain containers and tensors:

- ``taken``: batches of the epoch, of which ``yielded`` are of the current iteration, the ``iteration``-th of the epoch
  (a shorter loader is restarted within it)
- ``birth``, ``order``, ``now``: captured when the iterator was created, when its order began, and at this position
- ``states``: of the workers, after their last batch; ``began``: of the workers, at the start of this iteration
- ``ahead``: random states before a prefetched batch; ``drawn``: number of batches that were drawn from the order, with
  prefetched ones and the attempt that found its end, as its generator has advanced as far
- ``dealt``: the rest of the epoch when a run with other sizes started, instead of an order, or the ``place`` where that
  started; ``bits``: samples returned; ``own``: the loader's own state, and orders ``begun``; ``ended``: no more
"""

WATCH = "_lightning_sagemaker_watch"
"""Attribute of a watched loader."""
_KEPT = 4
"""Number of positions that are kept: Lightning prefetches one batch if it does not know the length."""
_LOOKED_AT = 3
"""Batches after which an order is assumed to draw nothing more from the global generators."""
_END = object()


class Watch:
    """The position of one loader.

    Args:
        loader: The loader, which is iterated once an epoch.
        report: Called with a message if the order cannot be restored.

    Attributes:
        deferred: Whether an iteration that starts now would be discarded, as a checkpoint will set its start.
        mark: Transforms the indices of each batch; its second argument is the batch's number in the epoch.
        workers: States of the workers, also of those of loaders ``within`` this one.
        is_prefetched: Whether Lightning fetches a batch ahead, as it does not know the length of one of the loaders.
        iterable, is_custom: What is iterated in the loader's place; whether that is not as torch's is.
        passed, begun: The end of the epoch before, until the next begins; how often a loader's own state begins its order.

    """

    def __init__(self, loader: Any, report: Callable[[str], None] = print) -> None:
        self.loader, self.iterable, self._report = loader, loader, report
        self.capture = Capture(loader, is_own=not isinstance(loader, DataLoader))
        self.deferred = self._said = self._ended = self.is_custom = self.is_prefetched = False
        self.mark: Callable[[object, int], object] = lambda batch, _: batch
        self._recent: deque[Position] = deque(maxlen=_KEPT)
        self._wanted: Position | None = None
        self._reached: Position | None = None  # where an iteration begins, as long as it has given no batch
        self.passed: Position | None = None
        self.orders: Any = None  # of a loader with its own state, kept from epoch to epoch
        self._outer: Any = None
        self._birth: Captured | None = None
        self._order: Captured | None = None
        self.workers = WorkerStates((getattr(loader, "snapshot_every_n_steps", 1) or 0) if has_state(loader) else 1)
        self.within: Sequence[Loader] = ()
        self.seen, self.begun = Seen(), 1
        self._issued: list[npt.NDArray[np.int64]] = []
        self._taken = self._iterations = self._yielded = self._drawn = self._dealt_after = 0
        self._dealt: Sequence[Any] | None = None
        self._bits_before: torch.Tensor | None = None

    @property
    def is_iterable(self) -> bool:
        """Whether the samples have no indices, so that batches cannot be skipped."""
        return isinstance(getattr(self.loader, "dataset", None), IterableDataset)

    @property
    def is_persistent(self) -> bool:
        """Whether workers outlive an epoch."""
        return any(getattr(one, "persistent_workers", False) for one in (self.loader, *self.within))

    def have_read_again(self, wanted: Position) -> None:
        """Report batches that are others than at first."""
        if not self.seen.equals(wanted.get("seen")):
            self._report(f"{type(self.loader).__name__} {OTHERS}")

    def reads_again(self, own: object) -> bool:
        """Whether workers of a resumed run read their part of the epoch from its beginning: they draw as at first."""
        if has_state(self.loader):
            return self.is_iterable and not restores_workers(own)
        return self.is_iterable or self.is_custom

    def begin_epoch(self) -> None:
        """Start counting the batches of an epoch."""
        self._taken = self._iterations = 0
        self._recent.clear()

    # Recording

    def position(self, taken: int) -> Position | None:
        """The position after ``taken`` batches of the epoch; None before an iteration."""
        if self._birth is None:
            return self.passed
        if self._reached is not None and self._reached["taken"] == taken:
            dealt = self._reached["dealt"]
            if dealt is not None and "batches" in dealt:
                dealt = {name: value for name, value in dealt.items() if name != "batches"}
                dealt |= written_rest(self._reached["dealt"]["batches"])
            bits = self._reached.get("bits", None if dealt is None else dealt.get("bits"))
            drawn = max(self._drawn, self._reached.get("drawn", 0))
            return {**self._reached, "now": self.capture.take_objects(), "drawn": drawn, "dealt": dealt, "bits": bits}
        found = next((one for one in reversed(self._recent) if one["taken"] == taken), None) or self._now()
        following = next((one for one in self._recent if one["taken"] == taken + 1), None)
        states, began = read(found["states"]), read(found["began"])
        found = {key: value for key, value in found.items() if key not in ("before", "own")}
        dealt = None if self._dealt is None else {**written_rest(self._dealt), "after": self._dealt_after}
        found |= {
            "now": self.capture.take_objects(),
            "drawn": self._drawn,
            "ahead": None if following is None else following["before"],
            "states": states,
            "began": began,
            "own": self.own_state() if following is None or following["own"] is None else following["own"],
            "ended": self._ended and following is None,
            "dealt": dealt,
        }
        return found | {"bits": self._bits(found["yielded"])}

    def here(self) -> Position:
        """The position of the iteration, including all batches it returned."""
        found = self.position(self._taken)
        assert found is not None, "an iteration has begun"
        return found

    def _bits(self, yielded: int) -> torch.Tensor | None:
        """Which samples this iteration has returned; None if a number suffices, or it is unknown."""
        issued = self._issued[: max(0, yielded - self._dealt_after)]
        dataset: Any = self.loader.dataset if isinstance(self.loader, DataLoader) else None  # others have no indices
        if not hasattr(dataset, "__len__") or not self._records():
            return None
        bits = as_bits(np.concatenate([np.zeros(0, np.int64), *issued]), len(dataset))
        return bits if self._bits_before is None else bits | self._bits_before

    def give(self, batch: Any, before: Any = None, own: Any = None) -> Any:
        """Record a batch that is returned to training, and unpack it.

        Args:
            batch: The loader's batch.
            before: Random states before the batch was created, if it was created in this process.
            own: The loader's own state before the batch.

        """
        if not self._recent:  # this batch may be trained on again
            self._recent.append({**self._now(), "before": None, "own": None})
        batch = self.workers.take(batch)
        self._yielded += 1
        self.workers.count(self._yielded)
        if (self.is_custom or self.is_iterable) and not has_state(self.loader):  # it may be read again
            self.seen.add(batch, before)
        self._taken += 1
        self._reached = None
        self._recent.append({**self._now(), "before": before, "own": own})
        return batch

    def _now(self) -> Position:
        facts: Position = {"taken": self._taken, "iteration": self._iterations, "yielded": self._yielded}
        facts |= {"begun": self.begun, "birth": self._birth, "order": self._order, "seen": self.seen.checksum}
        facts |= {"states": self.workers.kept, "began": self.workers.began, "outlived": self.workers.outlived}
        return facts

    def own_state(self) -> Any:
        """The loader's own state; None if it has none."""
        return self.loader.state_dict() if has_state(self.loader) else None

    # Restoring

    def seek(self, position: Position | None) -> None:
        """Start the next iteration at a position."""
        self.deferred = False
        self.begin_epoch()
        self._wanted = position
        if self._wanted is not None:
            self._taken = self._wanted["taken"] - self._wanted["yielded"]
            self._iterations = self._wanted["iteration"] - 1

    @property
    def is_sought(self) -> bool:
        """Whether the next iteration starts at a position."""
        return self._wanted is not None

    def seek_rest(self, batches: Sequence[Any], done: int, bits: torch.Tensor | None) -> None:
        """Start the next iteration after ``done`` batches of an epoch, with these batches.

        Args:
            batches: Sample indices of each batch.
            done: Batches of this size that count as trained on.
            bits: The samples that are not among them, if known.

        """
        now = self.capture.take()
        facts = {"taken": done, "yielded": done, "iteration": 1, "birth": now, "order": now, "now": now, "ahead": None}
        dealt = {"batches": batches, "after": done, "bits": bits}
        self.seek({**facts, "states": {}, "began": {}, "own": None, "dealt": dealt})

    def begin_birth(self) -> Position | None:
        """Record or restore the random states for creating an iterator, which seeds workers and may draw the order."""
        wanted, self._wanted = self._wanted, None
        self._reached = wanted
        self._begin_iteration()
        if wanted is None:
            self._birth = self.capture.take()
            self.workers.start(self.is_persistent and any(has_workers(one) for one in (self.loader, *self.within)))
            return None
        self._birth, self.workers.outlived = wanted["birth"], wanted.get("outlived", False)
        self.workers.begin(wanted["began" if self.reads_again(wanted["own"]) else "states"], wanted["began"])
        self._outer = random_state()
        self.capture.put(wanted["birth"])
        if wanted["own"] is not None:
            self.loader.load_state_dict(wanted["own"])
        return wanted

    def begin_order(self, wanted: Position | None) -> None:
        """Record or restore the start of a custom iteration, before its first batch."""
        if wanted is None:
            self._order = self.capture.take()
        else:
            self._order = wanted["order"] or wanted["birth"]
            self.capture.put(self._order)

    def skip(self, wanted: Position) -> None:
        """Count the consumed batches, as a loader with its own state continues after them."""
        self._yielded, self._taken = wanted["yielded"], self._taken + wanted["yielded"]

    def end(self) -> None:
        """Record that the iteration is exhausted."""
        self._ended = True

    def end_birth(self) -> None:
        """Restore the run's random states, after an iterator was created."""
        if self._outer is not None:
            restore_random_state(self._outer)
            self._outer = None

    def _begin_iteration(self) -> None:
        self._iterations += 1
        self._ended, self.passed = False, None
        self.seen.begin()
        self._yielded, self._drawn, self._issued, self._order = 0, 0, [], None
        self._dealt, self._dealt_after, self._bits_before = None, 0, None

    def begin_again(self) -> None:
        """Start another epoch with persistent workers."""
        self._begin_iteration()

    def indices(self, sampler: Any, wanted: Position | None, begun: Begun | None) -> Iterator[Any]:
        """Start the order of a sampler, from the wanted position on."""
        self.end_birth()
        if wanted is None or wanted["order"] is None:
            self._order = (begun := begun or Begun(self.capture, sampler)).before()
            return self._watched(begun.order, 0)
        outer = random_state()
        self._order = wanted["order"]
        self.capture.put(wanted["order"])
        source, order, before = sampler, iter(sampler), 0
        if wanted["dealt"] is not None:
            self._dealt, before = read_rest(wanted["dealt"], sampler), wanted["dealt"]["after"]
            self._dealt_after, self._bits_before = before, wanted["dealt"].get("bits")
            source, order = self._dealt, iter(self._dealt)
        if not self.is_iterable:
            self._drawn = max(wanted.get("drawn", 0), wanted["yielded"])
            order = redrawn(source, order, wanted["yielded"] - before, self._drawn - before, self._issue)
            self._yielded, self._taken = wanted["yielded"], self._taken + wanted["yielded"]
            self.capture.put_objects(wanted["now"])
        restore_random_state(outer)
        return self._watched(order, self._yielded)

    def _watched(self, order: Iterator[Any], done: int) -> Iterator[Any]:
        """Record an order after ``done`` batches, and detect one that keeps drawing from the global generators."""
        for number in itertools.count():
            looks = 0 < number < _LOOKED_AT and not self.is_iterable and not self._said
            before = random_state(devices=False) if looks else None
            index = next(order, _END)
            self._drawn = max(self._drawn, done + number + 1)
            if before is not None and not equal_states(before, random_state(devices=False)):
                self._said = True
                self._report(
                    f"{type(self.loader.sampler).__name__} draws from the global random number generators during iteration,"
                    " so a run that is resumed within an epoch trains on other samples. HINT: draw the order at the"
                    " beginning of __iter__, or from its own generator."
                )
            if index is _END:
                return
            self._issue(index)
            yield index

    def _records(self) -> bool:  # their number is not enough, or was not when the epoch was dealt
        return not self.is_iterable and (self._bits_before is not None or not is_counted(self.loader))

    def _issue(self, index: Any) -> None:
        if self._records():
            self._issued.append(numbers_of(index))


def is_watched(loader: Any) -> bool:
    """Whether a loader is tracked, so that consumed batches are skipped."""
    return hasattr(loader, WATCH)


def has_state(loader: Any) -> bool:
    """Whether a loader has its own state."""
    if getattr(loader, "iterates_as_torch", False):
        return False
    return all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict"))
