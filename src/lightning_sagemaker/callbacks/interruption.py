# SPDX-License-Identifier: Apache-2.0
"""Spot interruptions: all ranks stop at the same step, with a checkpoint. Also periodic checkpoints."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.averages import swap_averages
from lightning_sagemaker._compat.default_group import usual_collectives
from lightning_sagemaker._compat.guard import TakenOver
from lightning_sagemaker._compat.loops import LoopEvents, events_of
from lightning_sagemaker._compat.trainer import ensure_callback, is_fast_dev_run
from lightning_sagemaker._lightning import Callback, rank_zero_info, rank_zero_warn
from lightning_sagemaker.callbacks.auto_resume import AutoResume, auto_resume_of
from lightning_sagemaker.callbacks.copied_by_arguments import CopiedByArguments
from lightning_sagemaker.callbacks.places import (
    HasFolder,
    check_keep,
    checkpoint_folder,
    name_of,
    names_in,
    outdated,
    remove,
)
from lightning_sagemaker.callbacks.shared_folder import delete_or_warn
from lightning_sagemaker.callbacks.signals import StopSignals
from lightning_sagemaker.callbacks.stop_votes import StopVotes
from lightning_sagemaker.collectives.agreement import of_all
from lightning_sagemaker.collectives.pace import Pace
from lightning_sagemaker.data.workers import STOP_SIGNALS

if TYPE_CHECKING:
    from lightning_sagemaker._types import LightningModule, Trainer


_CLOCKS = 60.0
"""Maximum difference of the hosts' clocks, in seconds, without a warning."""
_SHARE_OF_SAVING = 0.05
"""Maximum fraction of the time for periodic saving."""
_STEP_SECONDS = 1.5
"""Seconds of gradient accumulation beyond which a stop does not wait for the optimizer step."""
_LONG = 2
"""Index of a further flag that ranks exchange."""


class Interrupted(SystemExit):
    """Training was stopped by a signal; its state is in a checkpoint."""


class SpotInterruption(CopiedByArguments, HasFolder, Callback):
    """Stops all ranks together when any of them receives a signal, and saves every few minutes.

    SageMaker sends SIGTERM two minutes before it reclaims a spot instance, and not to every process at the same time.
    Lightning's own handler waits for the other ranks within the handler, and hangs. Here a signal only sets a flag; the
    ranks exchange it asynchronously, every few batches, and all stop after the same one: with a checkpoint if they were
    training, and with exit code 143. Before the first batch there is nothing to save, and each exits at once. Ctrl-C
    stops in the same way; a second one does not wait.

    Since a signal may never arrive, at most the time since the last checkpoint is lost.

    Args:
        dirpath: Folder of the checkpoints. Default: as in :class:`~lightning_sagemaker.AutoResume`.
        save_every: Time between checkpoints; longer if saving takes more than 5% of it. None to save only the last one.
        keep: Number of checkpoints to keep.
        signals: Signals that stop training.
        grace: Seconds from a signal to the end of the process; a checkpoint that would take longer is skipped.
        exit_code: Exit code of all ranks after an interruption.
        overhead: Fraction of a step's time that synchronizing with the other ranks may take.
        patience: Seconds without a step after a signal, after which the process exits without a checkpoint. It may be
            waiting for a process that is gone.

    """

    def __init__(
        self,
        dirpath: str | Path | None = None,
        save_every: timedelta | None = timedelta(minutes=10),
        keep: int = 2,
        signals: Sequence[signal.Signals] = STOP_SIGNALS,
        grace: float = 120.0,
        exit_code: int = 143,
        overhead: float = 0.001,
        patience: float | None = None,
    ) -> None:
        self.dirpath, self._keep, self._grace, self._exit_code = dirpath, check_keep(keep), grace, exit_code
        self._save_every = math.inf if save_every is None else save_every.total_seconds()
        self._signals = StopSignals(signals, grace if patience is None else patience, exit_code)
        self._votes = StopVotes(overhead)
        self._taken = TakenOver()
        self._events: LoopEvents | None = None
        self._save_seconds: float | None = None
        self._said_longer = False
        self._step = self._batches = self._evaluated = 0
        self._fewest: list[float] = []
        self._saved_at = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Install the signal handlers, in place of Lightning's. Collective over all ranks."""
        self._votes.connect()
        checkpoint_folder(trainer, self.dirpath)  # decided before the other callbacks' setup
        if (spread := self._votes.clock_spread()) > _CLOCKS:
            rank_zero_warn(
                f"The hosts' clocks differ by {spread:.0f} s: S3 rejects requests if the clock is off by 15 minutes."
                " HINT: synchronize them (chrony)."
            )
        if stage == "fit" and self._events is None:
            self._events = events_of(trainer)
            self._events.after_batch.append(lambda: self._end_batch(trainer))
            # A checkpoint is of little use without AutoResume, whose setup Lightning calls next if it is added.
            ensure_callback(trainer, AutoResume(search=False))
        environment = getattr(trainer.strategy, "cluster_environment", None)
        if type(environment).__name__ == "SLURMEnvironment":
            return  # Lightning's handler saves and requeues the job
        self._signals.install()
        self._signals.leave_by(self._leave)
        self._taken.take(trainer._signal_connector, "register_signal_handlers", lambda _: lambda: None)
        # Replaced, as it reduces over all ranks at each step, on the device.
        self._taken.take(trainer.fit_loop.epoch_loop, "_broadcast_sigterm_tensor", lambda _: lambda: None)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore signal handlers and the Trainer."""
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """As :meth:`teardown`, which is not called then."""
        self._restore()

    def _restore(self) -> None:
        self._signals.uninstall()
        self._taken.restore()
        if self._events is not None:
            self._events.release()
            self._events = None

    def _leave(self) -> None:
        rank_zero_info(f"Interrupted before there was anything to save: exit code {self._exit_code}.")
        raise Interrupted(self._exit_code)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the timer."""
        self._step, self._batches = trainer.global_step, 0
        self._votes.stops = self._votes.saves = False
        self._votes.training.start(0)
        self._saved_at = time.monotonic()

    def begin_again(self, trainer: Trainer) -> None:
        """Drop pending exchanges and restart the counters, as the ranks have changed."""
        self._votes.discard()
        self.on_train_start(trainer, trainer.lightning_module)

    def on_train_batch_start(self, trainer: Trainer, *_: object) -> None:
        """Stop exiting at once on a signal, as from now on there is state to save."""
        self._signals.leave_by(None)

    def _end_batch(self, trainer: Trainer) -> None:
        """Check for signals of all ranks, after a batch and everything that follows it."""
        steps, self._step = trainer.global_step - self._step, trainer.global_step
        self._batches += 1
        self._signals.is_alive()
        self._check(trainer, self._votes.training, self._batches)
        if steps > 0 or auto_resume_of(trainer).holds_step:  # else gradients are being accumulated
            if self._votes.stops:
                self._stop(trainer)
            elif self._votes.saves and steps > 0:
                self._save(trainer)

    def _check(self, trainer: Trainer, pace: Pace, count: int) -> None:
        """Exchange flags, if due after ``count`` batches, and act on the result."""
        if not pace.is_due(count):
            return
        is_due = trainer.training and trainer.is_global_zero and time.monotonic() - self._saved_at >= self._interval
        is_long = pace.batch_seconds(count) * trainer.accumulate_grad_batches > _STEP_SECONDS
        known = self._votes.exchange(pace, count, [self._signals.arrived is not None, is_due, is_long])
        if trainer.training:
            auto_resume_of(trainer).steps_are_long = bool(known[_LONG])

    def _begin_evaluation(self, trainer: Trainer, batches: Sequence[float]) -> None:
        """Count the batches for exchanges: of each loader, as many as the rank with the fewest batches has.

        Between two loaders Lightning reduces what was logged.
        """
        self._votes.training.pause()
        self._votes.settle()
        self._signals.leave_by(None)
        found = self._votes.maximum([-count if math.isfinite(count) else 0 for count in batches or [0]])
        self._evaluated, self._fewest = 0, [-count for count in found]
        self._votes.evaluation.start(0)
        if self._votes.stops:
            self._stop(trainer)

    def _end_evaluation_batch(self, trainer: Trainer, number: int, loader: int) -> None:
        self._signals.is_alive()
        with usual_collectives():  # recovery in the job refuses collectives while numbers of batches differ
            if number < self._fewest[loader]:
                self._evaluated += 1
                self._check(trainer, self._votes.evaluation, self._evaluated)
            if self._votes.stops:
                self._stop(trainer, within_validation=bool(trainer.validating))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting the batches of the evaluation."""
        if not trainer.sanity_checking:
            self._begin_evaluation(trainer, trainer.num_val_batches)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: object,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Check for signals of all ranks."""
        if not trainer.sanity_checking:
            self._end_evaluation_batch(trainer, batch_idx, dataloader_idx)

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue counting training's batches."""
        if not trainer.sanity_checking:
            self._votes.settle()
            self._votes.training.resume()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting the batches of the evaluation."""
        self._begin_evaluation(trainer, trainer.num_test_batches)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting the batches of the evaluation."""
        self._begin_evaluation(trainer, trainer.num_predict_batches)

    @property
    def _interval(self) -> float:
        """Seconds between checkpoints."""
        return max(self._save_every, (self._save_seconds or 0.0) / _SHARE_OF_SAVING)

    def _save(self, trainer: Trainer) -> str:
        """Write a checkpoint and remove older ones. Collective."""
        folder = checkpoint_folder(trainer, self.dirpath)
        path = f"{folder}/{name_of(trainer.global_step, auto_resume_of(trainer).fits)}"
        begin = time.monotonic()
        self._votes.saves = False
        trainer.save_checkpoint(path, weights_only=False)
        self._saved_at = time.monotonic()
        took = self._saved_at - begin
        self._save_seconds = took if self._save_seconds is None else (took + self._save_seconds) / 2
        if self._interval > self._save_every and not self._said_longer:
            self._said_longer = True
            rank_zero_info(
                f"Saving takes {self._save_seconds:.1f} s; saving every {self._interval:.0f} s to limit overhead."
            )
        if trainer.is_global_zero:
            delete_or_warn(folder, lambda: self._remove_old(trainer, folder))
        return path

    def _remove_old(self, trainer: Trainer, folder: str) -> None:
        fits = auto_resume_of(trainer).fits
        for name in outdated(names_in(trainer, folder), trainer.global_step, self._keep, fits):
            remove(trainer, f"{folder}/{name}")

    def _stop(self, trainer: Trainer, within_validation: bool = False) -> None:
        """Exit this process, with a checkpoint. Collective."""
        if trainer.state.fn == "fit" and not is_fast_dev_run(trainer):
            background_seconds = getattr(trainer.strategy, "background_seconds", 0.0)
            if within_validation:
                swap_averages(trainer)
            are_own = of_all(auto_resume_of(trainer).fit_state.exchanged.put_back(), trainer.world_size)
            left, needed = trainer.strategy.broadcast(
                (self._seconds_left(), max(self._save_seconds or 0.0, background_seconds))
            )
            if not all(are_own):
                rank_zero_warn(
                    f"Interrupted at step {trainer.global_step}: skipping the checkpoint, as a hook has exchanged the"
                    " weights for this validation, and there is no copy of the others. HINT: the last checkpoint is"
                    " resumed from; set save_every to lose less."
                )
            elif needed < left:
                path = self._save(trainer)
                if hasattr(trainer.strategy, "finish_saving"):  # the checkpoint may be written asynchronously
                    trainer.strategy.finish_saving()
                rank_zero_info(f"Interrupted at step {trainer.global_step}: wrote {path}, exit code {self._exit_code}.")
            else:
                rank_zero_warn(
                    f"Interrupted at step {trainer.global_step}: skipping the checkpoint, as {max(left, 0):.0f} s are"
                    f" left and the last one took {needed:.0f} s."
                )
        else:
            rank_zero_info(f"Interrupted: exit code {self._exit_code}.")
        raise Interrupted(self._exit_code)

    def _seconds_left(self) -> float:
        arrived = self._signals.arrived
        return self._grace if arrived is None else self._grace - (time.monotonic() - arrived)
