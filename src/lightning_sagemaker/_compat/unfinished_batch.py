# SPDX-License-Identifier: Apache-2.0
"""A batch that fails after its optimizer step counts as complete, so a resumed run does not train on it again.

Lightning counts a batch, and the optimizer's step, once all their code has run. If that fails after the update, as in a
module's ``optimizer_step`` that goes on after it, or in a scheduler, a checkpoint that is saved then has the new weights
under the old count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch.optim import Optimizer

from lightning_sagemaker._compat.guard import TakenOver
from lightning_sagemaker._compat.param_groups import group_options, set_group_options
from lightning_sagemaker._compat.phase import Phase, phase_of
from lightning_sagemaker._compat.plain_copy import plain_copy
from lightning_sagemaker._compat.trainer import bare_optimizer
from lightning_sagemaker._lightning import rank_zero_warn

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import Trainer

_INTERVALS = ("step", "epoch")
"""In the order in which Lightning steps schedulers after a batch."""


class UnfinishedBatch:
    """Keeps the counters and schedulers of a fit as far as a failing batch has come, until :meth:`release`.

    Args:
        trainer: The Trainer.
        events: Events of the Trainer's fit.
        is_saved: Whether a checkpoint may be saved after an exception.

    """

    def __init__(self, trainer: Trainer, events: LoopEvents, is_saved: Callable[[], bool]) -> None:
        self._trainer, self._events, self._is_saved = trainer, events, is_saved
        self._taken = TakenOver()
        self._hooks: list[RemovableHandle] = []
        self._is_updated = False
        events.after_optimizers_load.append(self._begin)

    def _begin(self) -> None:
        if self._hooks or not self._is_saved():
            return
        loop = self._trainer.fit_loop.epoch_loop
        for optimizer in map(bare_optimizer, self._trainer.optimizers):
            if isinstance(optimizer, Optimizer):
                self._hooks.append(optimizer.register_step_post_hook(self._note_update))
        self._taken.take(loop.automatic_optimization, "run", self._with_count)
        self._taken.take(loop.manual_optimization, "run", self._with_count)
        self._taken.take(loop, "update_lr_schedulers", self._all_or_none)
        self._taken.take(loop, "_save_loggers_on_train_batch_end", self._after_batch)

    def _note_update(self, *_: object) -> None:
        self._is_updated = True

    def _with_count(self, optimize: Callable[..., object]) -> Callable[..., object]:
        def optimizes(*arguments: object, **named: object) -> object:
            self._is_updated = False
            try:
                return optimize(*arguments, **named)
            except BaseException:
                if self._is_updated:
                    self._count()
                raise

        return optimizes

    def _count(self) -> None:
        """Count the step and the batch, as Lightning would have done without the exception."""
        loop = self._trainer.fit_loop.epoch_loop
        automatic, manual = loop.automatic_optimization.optim_progress, loop.manual_optimization.optim_step_progress
        for steps in (automatic.optimizer.step, manual):
            if steps.current.completed < steps.current.ready:
                steps.increment_completed()
        loop.batch_progress.increment_processed()
        self._note_due(_INTERVALS[0])

    def _note_due(self, interval: str) -> None:
        """Record that the schedulers of this interval and the following ones have not been stepped."""
        ends = self._trainer.fit_loop.epoch_loop._num_ready_batches_reached()
        self._events.schedules_due = list(_INTERVALS[_INTERVALS.index(interval) : 2 if ends else 1])

    def _all_or_none(self, update: Callable[[str, bool], None]) -> Callable[[str, bool], None]:
        """Step the schedulers of an interval all or not at all, although one of them fails."""

        def updates(interval: str, update_plateau_schedulers: bool) -> None:
            configs, optimizers = self._trainer.lr_scheduler_configs, self._trainer.optimizers
            states = [plain_copy(config.scheduler.state_dict()) for config in configs]
            groups = [group_options(optimizer.param_groups) for optimizer in optimizers]
            try:
                update(interval, update_plateau_schedulers)
            except BaseException:
                for config, state in zip(configs, states, strict=True):
                    config.scheduler.load_state_dict(state)
                for optimizer, settings in zip(optimizers, groups, strict=True):
                    set_group_options(optimizer.param_groups, settings)
                if not update_plateau_schedulers:  # the others follow in code that is run again in any case
                    self._note_due(interval)
                raise

        return updates

    def _after_batch(self, save: Callable[[], None]) -> Callable[[], None]:
        def saves() -> None:
            self._events.is_ending = False  # all of the batch is done: a logger may fail to write
            save()

        return saves

    def warn(self) -> None:
        """After an exception, log what a run that resumes from a checkpoint of now leaves out."""
        if self._is_saved() and phase_of(self._trainer, self._events) is Phase.BATCH_END:
            rank_zero_warn(
                "The exception has ended a batch after its optimizer step. In a checkpoint that is saved now the batch"
                " counts, and a run that resumes from it does not repeat it: not its hooks, such as on_train_batch_end,"
                " and not what training_step would have done after its first step."
            )

    def release(self) -> None:
        """Restore the loops."""
        self._taken.restore()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
