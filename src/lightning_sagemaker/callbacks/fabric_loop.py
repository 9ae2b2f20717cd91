# SPDX-License-Identifier: Apache-2.0
"""Interruptible custom loops with Fabric, the counterpart of the Trainer's SpotInterruption and AutoResume."""

from __future__ import annotations

import itertools
import math
import signal
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence, Sized
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from lightning_sagemaker._compat.fabric import inner_loader, list_loaders
from lightning_sagemaker._lightning import FabricDataLoader, rank_zero_info, rank_zero_warn
from lightning_sagemaker.callbacks.fabric_carried import CarriedLoaders
from lightning_sagemaker.callbacks.fabric_state import FabricState
from lightning_sagemaker.callbacks.interruption import Interrupted
from lightning_sagemaker.callbacks.signals import StopSignals
from lightning_sagemaker.callbacks.stop_votes import StopVotes
from lightning_sagemaker.collectives.pace import Pace
from lightning_sagemaker.data.position import Watch
from lightning_sagemaker.data.tracked import release, watch
from lightning_sagemaker.data.workers import STOP_SIGNALS

if TYPE_CHECKING:
    from lightning_sagemaker._types import Fabric, StateDict


T = TypeVar("T")

list_loaders(FabricDataLoader)  # before a script sets up its own

_WATCHES = 8
"""Number of loaders whose watches are kept: a script may create a loader for each epoch."""


class InterruptibleLoop:
    """Iterates over the epochs and batches of a custom loop, from the position where an interrupted run stopped.

    When any rank receives a signal, all ranks stop after the same batch, with a checkpoint and exit code 143; after a
    restart the loop resumes with the next batch, with the same samples and random numbers as an uninterrupted run::

        loop = InterruptibleLoop(fabric, "checkpoints", {"model": model, "optimizer": optimizer})
        for epoch in loop.epochs(3):
            for batch in loop.batches(train_loader):
                ...
            for batch in loop.evaluation(val_loader):
                ...

    Code between batches, epochs and evaluations runs as often as in an uninterrupted run, as long as it depends on
    ``state`` only: everything else starts over.

    Args:
        fabric: Fabric, after ``launch()``; the objects that it has set up must be in ``state``.
        dirpath: Folder of the checkpoints, shared by all hosts, or synced with S3 by SageMaker.
        state: Everything that training changes, as for ``fabric.save``: modules, optimizers, schedulers, generators and
            metrics (saved for each rank), and plain values (rank zero's, replaced in ``state`` when a checkpoint is loaded).
        save_every: Time between checkpoints. None to save only the last one.
        keep: Number of checkpoints to keep.
        signals: Signals that stop training.
        grace: Seconds from a signal to the end of the process.
        exit_code: Exit code of all ranks after an interruption.
        overhead: Fraction of a batch's time that synchronizing with the other ranks may take.
        weights_only: Whether to load data only. ``False`` allows the files to run code: use it for trusted checkpoints only.

    Attributes:
        epoch: The current epoch.
        batch: Number of batches that the epoch's current loop over batches has trained on.
        step: Number of batches that have been trained on in all epochs.

    """

    def __new__(cls, fabric: Fabric, *args: object, **kwargs: object) -> InterruptibleLoop:
        """One that recovers in the job, if the strategy does.

        Raises:
            TypeError: If a subclass is created with such a strategy.

        """
        kind: type[InterruptibleLoop] = getattr(fabric.strategy, "loop_kind", cls)
        if not issubclass(kind, cls):  # python would not call its __init__
            raise TypeError(
                f"recovery='in_job' was set, and the loop is a {cls.__name__}, not {kind.__name__}."
                " HINT: use InterruptibleLoop itself, or set recovery='restart'."
            )
        return object.__new__(kind)

    def __init__(
        self,
        fabric: Fabric,
        dirpath: str | Path,
        state: StateDict,
        *,
        save_every: timedelta | None = timedelta(minutes=10),
        keep: int = 2,
        signals: Sequence[signal.Signals] = STOP_SIGNALS,
        grace: float = 120.0,
        exit_code: int = 143,
        overhead: float = 0.001,
        weights_only: bool = True,
    ) -> None:
        self.epoch = self.batch = self.step = 0
        self._state = FabricState(fabric, dirpath, state, keep, weights_only)
        self._carried = CarriedLoaders(self._place)
        self._interval = math.inf if save_every is None else save_every.total_seconds()
        self._exit_code, self._is_first = exit_code, fabric.is_global_zero
        self._signals = StopSignals(signals, grace, exit_code)
        self._votes = StopVotes(overhead)
        self._watch: Watch | None = None
        self._watches: dict[int, tuple[Iterable[object], Watch]] = {}
        self._within = self._has_said = False
        self._saved_at = 0.0
        self._passing: Callable[[], Generator[object, None, None] | None] = lambda: None

    def _place(self) -> int | None:
        return self.step if self._within else None

    @property
    def discarded(self) -> bool:
        """Whether the current pass through the body is discarded, as with recovery from the loss of a rank."""
        return False

    def epochs(self, count: int | None = None) -> Generator[int, None, None]:
        """Yield the numbers of the remaining epochs, from the checkpoint on. Collective over all ranks.

        Args:
            count: Total number of epochs; None for no limit.

        Raises:
            CheckpointError: If there is a checkpoint that cannot be used.

        """
        self._votes.connect()
        self._signals.install()
        try:
            self.epoch, self.batch, self.step = self._state.load()
            self._carried.start(self._state.carried)
            self._saved_at = time.monotonic()
            self._votes.training.start(self.step)
            for number in itertools.count(self.epoch) if count is None else range(self.epoch, count):
                self.epoch = number
                self._state.begin_epoch()
                yield number
                self._leave()
                if self._votes.saves:  # requested in the last body, or in one that was left
                    self.save()
                self._state.end_epoch()
                self.batch = 0
                self._votes.settle()
                if self._votes.stops:
                    self.epoch += 1
                    self._stop()
                # Soon, as ranks may have been elsewhere for long.
                self._votes.training.schedule(self.step, 1, waits=True)
            self._state.complete()
        finally:
            self._carried.end()
            self._release()

    def batches(self, loader: Iterable[T], every: int = 1) -> Generator[T, None, None]:
        """Yield the remaining batches of an epoch, which may have several such loops. Collective over all ranks.

        Args:
            loader: Loader from ``fabric.setup_dataloaders``, or any other iterable.
            every: Stop and save only after multiples of this many batches: with gradient accumulation, those of a step.

        """
        passing = self._batches(loader, every)
        self._passing = weakref.ref(passing)
        return passing

    def _leave(self) -> None:
        """End the loop over batches, which is still open if it was left by ``break`` and the script holds on to it."""
        if (passing := self._passing()) is not None:
            passing.close()

    def _batches(self, loader: Iterable[T], every: int) -> Generator[T, None, None]:
        inner = inner_loader(loader)
        given, self._watch = self._watched(inner)
        if (skipped := self._state.skips(self._watch, loader)) is not None:
            self.batch = skipped
            return
        self.batch = self._state.begin_batches(self._watch, loader)
        self._signals.is_alive()
        for batch in loader if given is inner else given:
            self._within = True
            try:
                yield batch
            except GeneratorExit:  # after a break
                self._state.end_batches(self._watch, self.batch + 1, is_left=True)
                raise
            finally:
                self._within = False
                self.batch, self.step = self.batch + 1, self.step + 1
            self._check(self._votes.training, self.step)
            if self.batch % every == 0:
                if self._votes.stops:
                    self._stop()
                if self._votes.saves:
                    self.save()
        self._state.end_batches(self._watch, self.batch)

    def _watched(self, loader: Iterable[T]) -> tuple[Iterable[T], Watch]:
        """A loader's watch, which has seen it in earlier epochs too: only then it knows what these have changed in it."""
        if id(loader) not in self._watches:
            self._watches[id(loader)] = watch(loader, rank_zero_warn)
        for oldest in list(self._watches)[:-_WATCHES]:
            del self._watches[oldest]
        return cast("tuple[Iterable[T], Watch]", self._watches[id(loader)])

    def evaluation(self, loader: Iterable[T]) -> Generator[T, None, None]:
        """Yield the batches of an evaluation, between which signals are handled; a stopped evaluation is repeated.

        If the script has swapped the weights for it (averages, as ``ema.copy_to``), a checkpoint has those of the training.
        The first such evaluation is not interrupted, as only then it is known that the weights must be copied before.

        Args:
            loader: Any iterable; ranks may have different numbers of batches.

        Raises:
            ValueError: If it is the loader whose batches are being trained on.

        """
        if self._within and self._watch is not None and inner_loader(loader) is self._watch.loader:
            raise ValueError(
                "evaluation() was given the loader of batches(), inside its loop body. HINT: create another DataLoader over"
                " the same data."
            )
        self._votes.training.pause()
        self._votes.settle()
        fewest = -int(self._votes.maximum([-len(loader) if isinstance(loader, Sized) else 0])[0])
        lacks = any(self._votes.maximum([float(not self._state.weights.can_go_back())]))
        if lacks and not self._has_said:
            self._has_said = True
            rank_zero_info(
                "The weights of an evaluation are not those of the training, of which there is no copy: a stop waits for its"
                " end. There will be one for the next evaluation, unless they are sharded."
            )
        self._votes.evaluation.start(0)
        try:
            for number, batch in enumerate(loader, 1):
                yield batch
                if number <= fewest:
                    self._check(self._votes.evaluation, number)
                if self._votes.stops and not self._within and not lacks:
                    self._state.go_back()
                    self._stop()
        finally:
            self._votes.settle()
            self._votes.training.resume()

    def collective(self, operation: Callable[[], T]) -> T | None:
        """Run an operation that is repeated as a whole if a rank is lost: an evaluation and the collectives on its result.

        Also for collectives that are not Fabric's, such as a metric's ``compute``.

        Args:
            operation: A repeatable function; called once, unless the job recovers.

        Returns:
            The operation's result; None in a pass that is discarded.

        """
        return operation()

    def save(self) -> Path | None:
        """Write a checkpoint; when called in the body of a batch, after the body. Collective.

        After the last batch of an epoch the checkpoint has the state of that batch's end: a resumed run repeats later code.

        Returns:
            Path of the checkpoint; None if it is written later.

        Raises:
            RuntimeError: On all ranks, if it cannot be written.

        """
        if self._within:
            self._votes.saves = True
            return None
        with self._state.as_at_last_batch():
            path = self._state.save(self.epoch, self.batch, self.step, self._watch, self._carried.entry())
        self._votes.saves, self._saved_at = False, time.monotonic()
        return path

    def _check(self, pace: Pace, count: int) -> None:
        self._signals.is_alive()
        if pace.is_due(count):
            is_due = (
                pace is self._votes.training and self._is_first and time.monotonic() - self._saved_at >= self._interval
            )
            self._votes.exchange(pace, count, [self._signals.arrived is not None, is_due])

    def _stop(self) -> None:
        path = self.save()
        rank_zero_info(f"Interrupted after batch {self.step}: wrote {path}, exit code {self._exit_code}.")
        raise Interrupted(self._exit_code)

    def _release(self) -> None:
        self._signals.uninstall()
        self._watches = {}
        if self._watch is not None:
            release(self._watch.loader)
