# SPDX-License-Identifier: Apache-2.0
"""Spot interruptions: all ranks stop at the same step, with a checkpoint. And checkpoints by the clock."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from lightning_sagemaker._lightning import Callback, rank_zero_info, rank_zero_warn
from lightning_sagemaker.callbacks.places import checkpoint_folder, names_in, remove
from lightning_sagemaker.callbacks.signals import StopSignals
from lightning_sagemaker.checkpoint.whole import CheckpointError
from lightning_sagemaker.collectives.votes import Votes

_NAME = re.compile(r"auto-step=(\d+)\.ckpt")
_VALIDATING = "interrupted_validation"
_LATENCY = 2.0
"""Seconds between two questions at most."""
_CLOCKS = 60.0
"""Seconds by which the hosts' clocks may differ."""
_SHARE_OF_SAVING = 0.05
"""Of the time, at most, that saving by the clock may take."""


class Interrupted(SystemExit):
    """Training was stopped from outside; its work is in a checkpoint."""


class SpotInterruption(Callback):
    """Stops together when any rank is asked to by a signal, and saves every few minutes.

    SageMaker sends SIGTERM two minutes before it takes a spot instance away, and not to every process at the same time.
    Lightning's own handler waits for the other ranks within the handler, and hangs. Here a signal is only noted; the ranks
    agree beside the training, every few steps, and all stop at the same step: with a checkpoint if they were training, and
    with exit code 143.

    As a signal need not arrive at all, the time of the last checkpoint is what is lost at most.

    Args:
        dirpath: Of the checkpoints. Default: as :class:`~lightning_sagemaker.AutoResume`.
        save_every: Time between checkpoints; longer where saving takes more than 5% of it. None: none but the last.
        keep: How many of them stay.
        signals: That ask to stop.
        grace: Seconds from a signal to the end of the process; a checkpoint that would take longer is not begun.
        exit_code: Of all ranks after an interruption.
        overhead: Share of a step's time that asking the others may cost.
        patience: Seconds without a step after a signal, after which the process ends as it is. It may be waiting for a
            process that is gone.

    """

    def __init__(
        self,
        dirpath: str | Path | None = None,
        save_every: timedelta | None = timedelta(minutes=10),
        keep: int = 2,
        signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGUSR1),
        grace: float = 120.0,
        exit_code: int = 143,
        overhead: float = 0.001,
        patience: float | None = None,
    ) -> None:
        self._dirpath, self._keep, self._grace, self._exit_code = dirpath, keep, grace, exit_code
        self._overhead = overhead
        self._save_every = math.inf if save_every is None else save_every.total_seconds()
        self._signals = StopSignals(signals, grace if patience is None else patience, exit_code)
        self._votes = Votes(None)
        self._save_seconds: float | None = None
        self._said_longer = self._validates_first = self._puts_off = self._stops = False
        self._step = self._first_step = self._checked = self._next_check = 0
        self._batches = self._most_batches = 0
        self._checked_at = self._saved_at = 0.0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Note signals from here on, instead of Lightning's handler; collective over all ranks."""
        self._votes = Votes.of_all()
        if (spread := self._votes.clock_spread()) > _CLOCKS:
            rank_zero_warn(
                f"The hosts' clocks differ by {spread:.0f} s: S3 refuses requests of a clock that is wrong by 15 minutes."
                " HINT: synchronise them (chrony)."
            )
        loop = trainer.fit_loop.epoch_loop
        # No hook comes after all of a step: its rows, the module's own hook, a validation that is due.
        vars(loop)["on_advance_end"] = partial(self._end_step, trainer, loop.on_advance_end)
        environment = getattr(trainer.strategy, "cluster_environment", None)
        if type(environment).__name__ == "SLURMEnvironment":
            return  # Lightning's handler saves and queues the job again
        self._signals.install()
        vars(trainer._signal_connector)["register_signal_handlers"] = lambda: None
        # It asks all ranks at each step, on the device.
        vars(loop)["_broadcast_sigterm_tensor"] = lambda: None

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave signals and the Trainer as they were found."""
        self._restore(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """As :meth:`teardown`, which is not called then."""
        self._restore(trainer)

    def _restore(self, trainer: Any) -> None:
        self._signals.uninstall()
        vars(trainer._signal_connector).pop("register_signal_handlers", None)
        for name in ("_broadcast_sigterm_tensor", "on_advance_end"):
            vars(trainer.fit_loop.epoch_loop).pop(name, None)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The clock begins."""
        self._step = self._first_step = trainer.global_step
        self._puts_off = self._stops = False
        self._begin_counting(self._step)
        self._saved_at = time.monotonic()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Note a validation that is not done, and will not be."""
        checkpoint[_VALIDATING] = bool(self._stops and trainer.validating)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Remember whether a validation was interrupted."""
        self._validates_first = checkpoint.get(_VALIDATING, False)

    def _end_step(self, trainer: Any, end: Callable[[Any], None], data: Any) -> None:
        """After an optimizer step and all that follows it, see what the others know."""
        again, self._validates_first = self._validates_first, False
        loop = trainer.fit_loop.epoch_loop
        if again and loop._should_check_val_fx(data):  # a restarted Trainer leaves it out, or does the rest of it
            rank_zero_info("The validation that was interrupted is done again.")
            loop._skip_next_val = False
            trainer.fit_loop.restarting = False  # of all loops: a scheduler may follow what is measured now
        is_new, self._step = trainer.global_step != self._step, trainer.global_step
        end(data)
        self._signals.is_alive()
        if not is_new:  # gradients are being accumulated
            return
        # From the last batch on a restarted Trainer does not do all that belongs to an epoch's end.
        self._puts_off = loop.batch_progress.is_last_batch and not self._puts_off
        if not self._puts_off:
            self._check(trainer, self._step)

    def _begin_counting(self, count: int) -> None:
        self._checked, self._checked_at, self._next_check = count, time.monotonic(), count + 1

    def _check(self, trainer: Any, count: int) -> None:
        """Read what was asked before, act on it, and ask again; ``count`` is of steps, or of batches in an evaluation."""
        if count < self._next_check:
            return
        interval = self._act(trainer)
        now = time.monotonic()
        per_step = max(now - self._checked_at, 1e-6) / max(1, count - self._checked)
        is_due = trainer.training and trainer.is_global_zero and now - self._saved_at >= self._interval
        self._votes.ask([self._signals.arrived is not None, is_due, self._wished_interval(per_step)])
        self._checked, self._checked_at, self._next_check = count, now, count + interval

    def _act(self, trainer: Any) -> int:
        """Do what all have agreed on; how many steps to go on before the next question."""
        agreed = self._votes.read()
        if agreed is None:
            return 1
        stop, save, interval = agreed
        if stop:
            self._stop(trainer)
        if save and trainer.training:
            self._save(trainer)
        return int(interval)

    def _wished_interval(self, per_step: float) -> int:
        """Steps to the next question, from what one costs and what a step takes."""
        cheap = math.ceil(self._votes.seconds / (self._overhead * per_step))
        return max(1, min(cheap, int(_LATENCY / per_step)))

    def _evaluation_start(self, trainer: Any, batches: Sequence[float]) -> None:
        """Ranks may have different numbers of batches, so they ask each other as often as the one with the fewest can."""
        self._act(trainer)
        count = sum(batches)
        self._votes.ask([-count if math.isfinite(count) else 0])
        found = self._votes.read()
        assert found is not None
        self._batches, self._most_batches = 0, int(-found[0])
        self._begin_counting(0)

    def _evaluation_batch_end(self, trainer: Any) -> None:
        self._signals.is_alive()
        self._batches += 1
        if self._batches <= self._most_batches:
            self._check(trainer, self._batches)

    def _evaluation_end(self) -> None:
        self._begin_counting(self._step)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Ranks count their batches."""
        batches = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        self._evaluation_start(trainer, batches)

    def on_validation_batch_end(self, trainer: Any, *_: Any) -> None:
        """See what the others know."""
        self._evaluation_batch_end(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Count steps again."""
        self._evaluation_end()

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Ranks count their batches."""
        self._evaluation_start(trainer, trainer.num_test_batches)

    def on_test_batch_end(self, trainer: Any, *_: Any) -> None:
        """See what the others know."""
        self._evaluation_batch_end(trainer)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Ranks count their batches."""
        self._evaluation_start(trainer, trainer.num_predict_batches)

    def on_predict_batch_end(self, trainer: Any, *_: Any) -> None:
        """See what the others know."""
        self._evaluation_batch_end(trainer)

    @property
    def _interval(self) -> float:
        """Seconds between checkpoints."""
        return max(self._save_every, (self._save_seconds or 0.0) / _SHARE_OF_SAVING)

    def _save(self, trainer: Any) -> str:
        """Write a checkpoint and remove older ones. Collective."""
        folder = checkpoint_folder(trainer, self._dirpath)
        path = f"{folder}/auto-step={self._step}.ckpt"
        begin = time.monotonic()
        trainer.save_checkpoint(path, weights_only=False)
        self._saved_at = time.monotonic()
        took = self._saved_at - begin
        self._save_seconds = took if self._save_seconds is None else (took + self._save_seconds) / 2
        if self._interval > self._save_every and not self._said_longer:
            self._said_longer = True
            rank_zero_info(f"Saving takes {self._save_seconds:.1f} s, so it is done every {self._interval:.0f} s.")
        if trainer.is_global_zero:
            try:
                self._remove_old(trainer, folder)
            except (OSError, CheckpointError) as error:  # raised here alone, it would leave the others waiting
                rank_zero_warn(f"Older checkpoints stay in {folder}: {error}. HINT: make room there yourself.")
        return path

    def _remove_old(self, trainer: Any, folder: str) -> None:
        names = names_in(trainer, folder)
        found = {int(match[1]): f"{folder}/{name}" for name in names if (match := _NAME.fullmatch(name))}
        past = sorted(step for step in found if step <= self._step)
        future = found.keys() - set(past)  # damaged: this run did not go on from them
        for step in (*past[: -self._keep], *future):
            remove(trainer, found[step])

    def _stop(self, trainer: Any) -> None:
        """End this process, with a checkpoint of what was trained; all ranks come here together."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking and self._step > self._first_step:
            left, needed = trainer.strategy.broadcast((self._seconds_left(), self._save_seconds or 0.0))
            if needed < left:
                self._stops = True
                path = self._save(trainer)
                rank_zero_info(f"Interrupted at step {self._step}: {path} is written, exit code {self._exit_code}.")
            else:
                rank_zero_warn(
                    f"Interrupted at step {self._step}: no checkpoint is begun, as {left:.0f} s are left and the last one"
                    f" took {needed:.0f} s."
                )
        else:
            rank_zero_info(f"Interrupted before there was anything to save: exit code {self._exit_code}.")
        raise Interrupted(self._exit_code)

    def _seconds_left(self) -> float:
        arrived = self._signals.arrived
        return self._grace if arrived is None else self._grace - (time.monotonic() - arrived)
