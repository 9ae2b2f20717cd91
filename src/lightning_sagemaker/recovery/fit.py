# SPDX-License-Identifier: Apache-2.0
"""A fit that survives the loss of ranks: after a loss, or when a replacement joins, it resumes from the last committed step.

When the ranks change, all leave the loops wherever they are, form the next quorum, and re-enter them from the state
that each of them holds (:mod:`.held`); a replacement gets the state from another rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from lightning_sagemaker._compat.loops import LoopEvents, announces_weight_update, events_of
from lightning_sagemaker._lightning import Callback, rank_zero_info
from lightning_sagemaker.callbacks.auto_resume import auto_resume_of
from lightning_sagemaker.callbacks.interruption import SpotInterruption
from lightning_sagemaker.data.position import WATCH
from lightning_sagemaker.recovery import data_shards
from lightning_sagemaker.recovery.bars import show_bars
from lightning_sagemaker.recovery.held import HeldState, Moment, of_all_shards
from lightning_sagemaker.recovery.hook_collectives import HookCollectives
from lightning_sagemaker.recovery.job_rank import JobRank
from lightning_sagemaker.recovery.log_files import begin_writing, end_writing
from lightning_sagemaker.recovery.rank_loss import RanksChanged, end_of_job, is_rank_loss
from lightning_sagemaker.recovery.refused import CannotRecover, check, restarting_instead
from lightning_sagemaker.recovery.regroup import Regroup, Transfer
from lightning_sagemaker.recovery.step_collectives import NeedsAllRanks
from lightning_sagemaker.recovery.steps import Steps
from lightning_sagemaker.recovery.weights_check import WeightsCheck
from lightning_sagemaker.recovery.wire import End, Reply


class RecoveringFit(Callback):
    """The first of a Trainer's callbacks, during a fit whose strategy recovers in the job.

    Args:
        rank: This process as a rank of the job.
        form: Creates the default group of a quorum, and updates the strategy's ranks. Collective over them.
        world_size: Number of shards of the job.
        is_asked: Whether the script has set ``recovery="in_job"``.

    """

    flags_are_its_own = True

    def __init__(self, rank: JobRank, form: Callable[[Reply], None], world_size: int, is_asked: bool = True) -> None:
        self._rank, self._client, self._form, self._world_size = rank, rank.client, form, world_size
        self._is_asked = is_asked
        self._events: LoopEvents | None = None
        self._held: HeldState | None = None
        self._end: End | None = None
        self._steps: Steps | None = None
        self._arguments, self._weights = tuple[Any, ...](), WeightsCheck(rank.replicas is None, rank.client, is_asked)
        self._leads, self._changes = rank.order[0] == rank.number and not rank.joins, False

    # Called by Lightning

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Wrap the loops, which :class:`AutoResume` has set up.

        Raises:
            CannotRecover: If the script does something that cannot be repeated after a loss.

        """
        with restarting_instead(self._client, self._is_asked):
            check(trainer)
        self._trainer = trainer
        if self._leads:
            begin_writing(trainer.loggers)
        resume = auto_resume_of(trainer).fit_state
        self._steps = Steps(trainer, resume.modules, self._rank, self._world_size, self._commit)
        self._begin_quorum()
        events = self._events = events_of(trainer)
        self._held = HeldState(trainer, resume, self._steps, self._rank)
        self._hooks, self._is_notified = HookCollectives(trainer.strategy.root_device), announces_weight_update(trainer)
        resume.complete = lambda states: of_all_shards(states, self._rank.order, self._world_size)
        inner = events.run_override
        assert inner is not None
        events.run_override = lambda run: self._run(lambda: inner(run))
        events.after_training_loaders.append(self._deal)
        if trainer.fit_loop._combined_loader is not None:  # already created, for a schedule that needs its length
            self._deal(trainer.fit_loop._combined_loader)
        events.before_epoch.append(lambda: self._hold(Moment.EPOCH))
        events.before_epoch.append(lambda: self._rank.begin_epoch(trainer.current_epoch))
        events.before_weight_update.append(self._leave_state)
        events.after_module_batch_end.insert(0, self._before_saves)
        events.after_batch_hooks.append(self._end_hooks)
        events.after_batch.insert(0, self._end_batch)
        events.validation_step_context = self._steps.evaluation_step
        events.validation_end_context = self._steps.evaluation_end
        events.before_validation.append(self._begin_validation)
        events.after_validation_loaders.append(lambda _: self._deal_validation())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save the state before other callbacks, which may wait for other ranks, as saving does."""
        self._arguments = outputs, batch, batch_idx
        if self._is_stepped and (self._may_meet() or self._hooks.are_next(trainer.global_step)):
            self._hold(Moment.BATCH_END, self._arguments)

    def _before_saves(self) -> None:
        """Save the state after the module's hook, which is then not repeated."""
        arguments, self._arguments = self._arguments, ()  # release the batch before the next one
        if self._is_stepped and self._may_meet():
            self._hold(Moment.SAVES, arguments)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Check, before other callbacks act on the metrics, that all ranks have completed the validation.

        Raises:
            RanksChanged: If the validation must be repeated with other ranks.

        """
        self._check_whole()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the end of the fit, which all ranks have reached: a rank that is lost later is not replaced."""
        self._client.finish()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Restore the loops."""
        if self._events is not None:
            self._events.release()
            self._events = None
        if self._steps is not None:
            self._steps.release()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """As :meth:`teardown`, which Lightning does not call after an exception."""
        self.teardown(trainer, pl_module, "fit")

    # Called by the strategy

    def begin_batch(self, batch: Any, batch_idx: int) -> None:
        """Start a batch.

        Raises:
            RanksChanged: If the batch must be trained on with other ranks.

        """
        self._rank.end_early()
        if self._end is not None:
            self._save_and_end(self._end)
        if self._changes or self._client.changed:
            raise RanksChanged("the ranks have changed")
        assert self._steps is not None
        self._steps.begin_batch(batch, batch_idx)

    def compute(self, optimizer: Any, closure: Callable[[], Any]) -> Any:
        """Compute the gradients of a step and commit it. Collective.

        Raises:
            RanksChanged: If the step is not committed.

        """
        assert self._steps is not None
        return self._steps.with_adopted(optimizer, closure)

    def reduce_logged(self, tensor: Tensor, operation: object) -> Tensor | None:
        """As :meth:`.steps.Steps.reduce_logged`; also None outside of the fit."""
        return None if self._steps is None else self._steps.reduce_logged(tensor, operation)

    def reduce(self) -> bool:
        """Reduce the gradients after a backward pass. Collective if it is a step's last.

        Returns:
            Whether hooks that read gradients may be called.

        Raises:
            RanksChanged: If the step is not committed.

        """
        assert self._steps is not None
        return self._steps.reduce()

    def _commit(self, is_valid: bool, meanwhile: Callable[[], None]) -> None:
        self._check_whole()
        vote = self._client.vote(self._trainer.global_step + 1, is_valid, self._weights.sum(self._trainer.model))
        meanwhile()
        decision = self._weights.checked(self._client.decision(vote))
        if not decision["commit"]:
            raise RanksChanged("a rank was lost")
        self._changes = decision["change"]
        if not self._is_notified:
            self._leave_state()

    def _leave_state(self) -> None:
        """Mark the saved state as outdated, as the weights change next."""
        assert self._held is not None
        self._held.is_current = False
        self._hooks.begin()

    def _check_whole(self) -> None:
        if not self._rank.is_whole(self._trainer.strategy.root_device):
            if self._client.changed:
                raise RanksChanged("a rank was lost")
            raise RuntimeError("NCCL has aborted a collective")

    def _run(self, run: Callable[[], None]) -> None:
        assert self._held is not None
        if self._rank.joins:
            self._held.fit_state.start.joins = lambda: self._rank.answered(self._trainer.current_epoch)
            self._held.fit_state.prepare_alone()
            self._take_part()
            self._held.request_loaders()
        while True:
            try:
                run()
                if not self._client.commit(self._trainer.global_step, ok=True)["commit"]:
                    raise RanksChanged("a rank was lost before all had finished")
                break
            except Exception as error:
                if isinstance(error, NeedsAllRanks):
                    self._client.wait_for_all(error.collective)
                elif not is_rank_loss(error, self._rank, self._trainer.global_step):
                    raise
            begin = time.monotonic()
            self._take_part()
            rank_zero_info(
                f"{dist.get_world_size()} of {self._world_size} ranks continue after step {self._trainer.global_step};"
                f" {time.monotonic() - begin:.2f} s since they stopped."
            )

    def _take_part(self) -> None:
        """Join a quorum, with the state of its most advanced ranks."""
        held, trainer = self._held, self._trainer
        assert held is not None
        with restarting_instead(self._client, self._is_asked):
            held.leave_validation()
        if self._leads:
            end_writing(trainer.loggers)
        state, replicas = Transfer(held.all_of_it, held.take_over), self._rank.replicas
        shards_of = None if replicas is None else Transfer(held.weights, held.put_weights, replicas.size)
        regroup = Regroup(self._rank, self._form, state, shards_of, lambda: end_writing(trainer.loggers))
        self._end = regroup(lambda: held.at, lambda: trainer.global_step, trainer.strategy.root_device)
        self._go_on()

    def _begin_quorum(self) -> None:
        assert self._steps is not None
        self._steps.begin_quorum(self._rank.order)
        self._changes = False

    def _go_on(self) -> None:
        assert self._held is not None
        self._begin_quorum()
        self._weights.begin()
        self._held.put()
        leads, self._leads = self._leads, self._trainer.is_global_zero
        if self._leads and not leads:
            begin_writing(self._trainer.loggers)
        if self._leads is not leads:
            show_bars(self._trainer, self._leads)
        for callback in self._trainer.callbacks:
            if isinstance(callback, SpotInterruption):
                callback.begin_again(self._trainer)

    def _end_hooks(self) -> None:
        if self._is_stepped and self._may_meet():
            self._hold(Moment.HOOKS)

    def _end_batch(self) -> None:
        if self._is_stepped:
            self._hold(Moment.STEP)
            if not self._may_meet():
                self._hooks.end(self._trainer.global_step)

    @property
    def _is_stepped(self) -> bool:
        """Whether the optimizer has just stepped: gradients that are accumulated later are not part of the state."""
        return not self._trainer.fit_loop._should_accumulate()

    def _hold(self, moment: Moment, hooks: tuple[Any, ...] | None = None) -> None:
        assert self._held is not None
        self._held.take(moment, hooks)

    def _may_meet(self) -> bool:
        """Whether the code after a batch may wait for other ranks: a validation, a checkpoint, an epoch's end."""
        trainer, loop = self._trainer, self._trainer.fit_loop.epoch_loop
        saves = any(
            ((every := getattr(callback, "_every_n_train_steps", 0)) and trainer.global_step % every == 0)
            or getattr(callback, "_train_time_interval", None)
            for callback in trainer.checkpoint_callbacks
        ) or any(type(callback).__name__ == "Timer" for callback in trainer.callbacks)
        return bool(
            saves or loop.batch_progress.is_last_batch or loop._should_check_val_fx(trainer.fit_loop._data_fetcher)
        )

    def _save_and_end(self, end: End) -> None:
        """The job cannot continue: save a checkpoint and exit. Collective."""
        trainer = self._trainer
        path = auto_resume_of(trainer).next_path(trainer)
        trainer.save_checkpoint(path, weights_only=False)
        raise end_of_job(end, self._world_size, path)

    def _deal(self, combined: Any) -> None:
        with restarting_instead(self._client, self._is_asked):
            if len(combined.flattened) != 1:
                raise CannotRecover(f"there are {len(combined.flattened)} training loaders")
            assert self._steps is not None
            data_shards.deal(combined.flattened[0], self._steps.seed)
            getattr(combined.flattened[0], WATCH).mark = self._steps.seeded_batch

    def _begin_validation(self) -> None:
        assert self._steps is not None
        self._steps.begin_validation()
        self._deal_validation()

    def _deal_validation(self) -> None:
        """Make this rank evaluate the shards of lost ranks, too."""
        loop, limit = self._trainer.fit_loop.epoch_loop.val_loop, self._trainer.limit_val_batches
        steps = self._steps
        if loop._combined_loader is None or steps is None or self._trainer.sanity_checking:
            return
        for number, loader in enumerate(loop._combined_loader.flattened):
            if data_shards.evaluate_shards(loader, lambda: steps.own_shards, steps.seed, limit):
                loop._max_batches[number] = len(loader)
