# SPDX-License-Identifier: Apache-2.0
"""Runs Lightning's training loops from the point of a checkpoint, through the methods that they call themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from lightning_sagemaker._compat.loops import current_events
from lightning_sagemaker._compat.phase import Phase
from lightning_sagemaker._compat.trainer import counts

if TYPE_CHECKING:
    from lightning_sagemaker._types import DataFetcher, FitLoop, Trainer, TrainingEpochLoop


_MID_EPOCH = "restarted_mid_epoch"


def is_cut(trainer: Trainer) -> bool:
    """Whether training ends within an epoch: at its last step, or stopped by a callback such as ``Timer``."""
    fit = trainer.fit_loop
    batch, stops = fit.epoch_loop.batch_progress, trainer.should_stop or 0 <= trainer.max_steps <= trainer.global_step
    return bool(stops and batch.current.ready and not fit.epoch_loop._num_ready_batches_reached())


def reopen_epoch(trainer: Trainer) -> bool:
    """Continue an epoch that was cut, if there are more steps now; returns whether there are."""
    if 0 <= trainer.max_steps <= trainer.global_step:
        return False
    progress = trainer.fit_loop.epoch_progress
    for counted in (counts(progress.current), counts(progress.total)):
        counted.processed -= 1
        counted.completed = counted.processed  # as it still is in the hooks of the epoch's end
    return True


def resume_fit(
    trainer: Trainer,
    phase: Phase,
    prepare: Callable[[DataFetcher | None], None],
    begins: bool = True,
    hooks: Callable[[], None] = lambda: None,
) -> None:
    """Run a fit from a checkpoint's phase to its end. The loops' progress has been loaded.

    Args:
        trainer: Trainer, whose ``fit_loop.run`` this replaces.
        phase: The point in the fit at which the checkpoint was saved.
        prepare: Called after all hooks of the start, with the data fetcher, or None if the next epoch creates an iterator:
            restores loaders, random states and metrics.
        begins: Whether the hooks of a fit's start are called: not if a fit resumes in the process that started it.
        hooks: Called first if the phase is a batch's end, to repeat its hooks if needed.

    """
    fit = trainer.fit_loop
    completed = fit.epoch_progress.current.completed
    fit.setup_data()
    if fit.skip and phase is Phase.BETWEEN:
        return
    _forget_restart(fit, within_epoch=phase not in (Phase.BETWEEN, Phase.EPOCH_END))
    torch.set_grad_enabled(True)
    if begins:
        fit.on_run_start()
    try:
        if phase is Phase.EPOCH_END:
            fit.epoch_progress.current.completed = completed
            prepare(None)
            _end_epoch(fit)
        elif phase is not Phase.BETWEEN:
            fit.on_advance_start()
            _continue_epoch(trainer, phase, prepare, hooks)
            fit.on_advance_end()
        else:  # the first epoch's iterator is created before its start, and not by its loop
            prepare(fit._data_fetcher if trainer.current_epoch == 0 else None)
    except StopIteration:
        pass
    finally:
        fit.on_iteration_done()
    while not fit.done:
        try:
            fit.on_advance_start()
            fit.advance()
            fit.on_advance_end()
        except StopIteration:
            break
        finally:
            fit.on_iteration_done()
    fit._restarting = False
    fit.on_run_end()


def _forget_restart(fit: FitLoop, within_epoch: bool) -> None:
    """Clear the loops' restart flags, as they continue exactly. Only an epoch's first hooks are not repeated."""
    for loop in (fit, fit.epoch_loop, fit.epoch_loop.val_loop):
        loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
        loop.reset_restart_stage()
    if within_epoch:
        fit._restart_stage = _MID_EPOCH
        assert fit.restarted_mid_epoch, "Lightning has other names for where it restarts"
    else:
        for progress in (counts(fit.epoch_progress.current), counts(fit.epoch_progress.total)):
            if progress.processed == progress.completed:  # in the first hooks of an epoch, which are repeated
                progress.ready = progress.started = progress.completed


def _end_epoch(fit: FitLoop) -> None:
    """Run Lightning's code after the hooks of an epoch's end, in the last of which the checkpoint was saved."""
    loop, connector = fit.epoch_loop, fit.trainer._logger_connector
    connector.epoch_end_reached()
    connector.on_epoch_end()
    if loop._num_ready_batches_reached():
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    loop._batches_that_stepped -= 1  # the epoch's row of the loggers has the number of its last step
    connector.update_train_epoch_metrics()
    loop._batches_that_stepped += 1
    fit.epoch_progress.increment_completed()


def _continue_epoch(
    trainer: Trainer, phase: Phase, prepare: Callable[[DataFetcher | None], None], hooks: Callable[[], None]
) -> None:
    fit, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    fetcher = fit._data_fetcher
    assert fetcher is not None
    prepare(fetcher)
    if phase is Phase.MID_BATCH:
        _repeat_batch(loop)
    fetcher.fetched += loop.batch_progress.current.ready
    if fetcher.length is not None:
        fetcher.done = fetcher.fetched >= fetcher.length
    if phase in (Phase.STEP, Phase.MID_BATCH):  # a batch that failed while it was moved to the device may be the last
        loop.batch_progress.is_last_batch = fetcher.done
    fetcher._start_profiler, fetcher._stop_profiler = loop._on_before_fetch, loop._on_after_fetch
    if phase is Phase.BATCH_END:
        hooks()
    if phase not in (Phase.STEP, Phase.MID_BATCH):
        _end_batch(trainer, fetcher, phase)
    while not loop.done:
        try:
            loop.advance(fetcher)
            loop.on_advance_end(fetcher)
        except StopIteration:
            break
        finally:
            loop.on_iteration_done()


def _repeat_batch(loop: TrainingEpochLoop) -> None:
    """Do not count the batch in which the checkpoint was saved, as it is fetched again."""
    for progress in (counts(loop.batch_progress.current), counts(loop.batch_progress.total)):
        progress.ready = progress.started = progress.processed = progress.completed
    loop.automatic_optimization.optim_progress.reset_on_restart()


def _end_batch(trainer: Trainer, fetcher: DataFetcher, phase: Phase) -> None:
    """Run the code after the batch in which the checkpoint was saved."""
    loop, events = trainer.fit_loop.epoch_loop, current_events(trainer)
    if phase is Phase.BATCH_END:
        while events is not None and events.schedules_due:
            loop.update_lr_schedulers(events.schedules_due[0], update_plateau_schedulers=False)
            events.schedules_due.pop(0)
        loop.batch_progress.increment_completed()
        trainer._logger_connector.update_train_step_metrics()  # the batch's row of the loggers
    loop._skip_next_val = phase is Phase.VALIDATED
    loop.on_advance_end(fetcher)
