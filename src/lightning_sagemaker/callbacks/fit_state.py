# SPDX-License-Identifier: Apache-2.0
"""Saves and restores the state that an exact resume needs in addition to Lightning's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from lightning_sagemaker._compat.connectors import (
    begin_epoch_again,
    callback_states,
    own_callback_states,
    plain_copy,
    restore_callback_states,
    restore_trainer_memory,
    trainer_memory,
)
from lightning_sagemaker._compat.loop_state import loop_state
from lightning_sagemaker._compat.loops import LoopEvents, Phase, phase_of
from lightning_sagemaker._compat.reloads import reload_as, set_reloads
from lightning_sagemaker._compat.resume_loops import is_cut, reopen_epoch, resume_fit
from lightning_sagemaker._compat.trainer import counts
from lightning_sagemaker._lightning import rank_zero_info, rank_zero_warn
from lightning_sagemaker.callbacks.accumulation import has_accumulated, saves_within, warn_of_lost_gradients
from lightning_sagemaker.callbacks.fit_loaders import FitLoaders
from lightning_sagemaker.callbacks.other_size import restore_from_other_ranks
from lightning_sagemaker.callbacks.own_objects import reading_own_objects
from lightning_sagemaker.callbacks.schedules import stretch_schedules
from lightning_sagemaker.checkpoint.accumulated_gradients import ManualGradients
from lightning_sagemaker.checkpoint.attributes import PlainAttributes
from lightning_sagemaker.checkpoint.exchanged_weights import ExchangedWeights
from lightning_sagemaker.checkpoint.find import STATE
from lightning_sagemaker.checkpoint.fit_random import FitRandom
from lightning_sagemaker.checkpoint.metric_state import metric_states, restore_logged, restore_metrics
from lightning_sagemaker.checkpoint.module_flags import module_flags, restore_module_flags
from lightning_sagemaker.checkpoint.module_walk import ModuleWalk
from lightning_sagemaker.checkpoint.rank_buffers import buffers_of, copied, differing, restore_buffers
from lightning_sagemaker.checkpoint.start_hooks import StartHooks
from lightning_sagemaker.collectives.agreement import of_all
from lightning_sagemaker.collectives.buckets import bucket_layout, rebuild_as

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, DataFetcher, Trainer
    from lightning_sagemaker.callbacks.fit_entries import FitEntry, Noted, RankState

_WRITTEN = ("random", "epoch_random", "metrics", "memory", "loaders", "flags", "attributes")
"""Entries of a rank's state that are saved unchanged."""


class FitState:
    """Saves and restores the state of one fit.

    Args:
        trainer: Trainer of the fit.
        events: Events of the fit.
        steps_are_long: Whether a stop does not wait until accumulated gradients are used.

    Attributes:
        found: The checkpoint to resume from, and whether it is loaded with ``weights_only``.
        runs: Whether the loops have run, other than for a finder's trial.
        complete: Called with the states of all ranks; returns those to save.
        exchanged: Weights that hooks swap for a validation.
        random: Random number generators of the fit.
        start: The script's hooks of the start of the fit and of an epoch.
        modules: A walk over the trained module.
        attributes: Plain attributes of the script's own classes.

    """

    def __init__(self, trainer: Trainer, events: LoopEvents, steps_are_long: Callable[[], bool]) -> None:
        self._trainer, self._events, self._steps_are_long = trainer, events, steps_are_long
        self.loaders = FitLoaders(trainer, rank_zero_warn)
        self.modules = ModuleWalk(trainer.lightning_module)
        self.attributes = PlainAttributes(trainer, lambda: self.modules.recent()[0])
        self.found: tuple[str, bool | None] | None = None
        self.complete: Callable[[list[RankState]], list[RankState]] = list
        self._before_validation: RankState | None = None
        self._held: RankState | None = None
        self._held_phase = Phase.STEP
        self._loaded: FitEntry | None = None
        self.random = FitRandom(trainer, events, self.loaders)
        self._gradients = ManualGradients(trainer, events)
        self.start = StartHooks(trainer, events, self.random, lambda: self._loaded is not None)
        self._noted: Noted | None = None
        self.runs = self._has_tried = False
        events.after_training_loaders.append(self.loaders.watch_training)
        events.after_validation_loaders.append(self.loaders.watch_validation)
        events.before_epoch.append(self.attributes.begin)
        events.before_epoch_iterator.append(self.loaders.begin_epoch)
        self.exchanged = ExchangedWeights(trainer, events)
        events.before_validation.append(self._note_validation)
        events.after_batch.insert(0, self._end_batch)
        events.run_override = self._run

    def save(self, checkpoint: Checkpoint) -> None:
        """Add the states of all ranks to a checkpoint that is being saved. Collective."""
        if not self.runs:  # before the fit, like checkpoints that Lightning's finders return to
            checkpoint[STATE] = {}
            return
        self.exchanged.check_saved()
        noted = self._noted or self._note()
        phase, snapshot = noted["phase"], noted["own"]
        if noted["lacks_gradients"]:
            warn_of_lost_gradients()
        if snapshot["fit_loop"] is not None:
            checkpoint["loops"]["fit_loop"], checkpoint["callbacks"] = snapshot["fit_loop"], snapshot["callbacks"]
        own = cast("RankState", {name: snapshot[name] for name in _WRITTEN})  # type: ignore[literal-required]
        callbacks = callback_states(self._trainer) if snapshot["callbacks"] is None else snapshot["callbacks"]
        own["callbacks"] = own_callback_states(self._trainer, callbacks)
        own["gradients"] = self._gradients.shared(snapshot["gradients"])
        own["buffers"] = differing(buffers_of(self._trainer), snapshot["buffers"], self._trainer.world_size)
        checkpoint[STATE] = {
            "phase": phase.value,
            "cut": noted["cut"],
            "batches": snapshot["batches"],
            "ranks": self.complete(of_all(own, self._trainer.world_size)),
            "accumulate": self._trainer.accumulate_grad_batches,
            "buckets": noted["buckets"],
            "gradients": snapshot["gradients"],
            **noted["facts"],
        }

    def _note(self) -> Noted:
        """The state of this rank to save. Not collective."""
        trainer = self._trainer
        phase, snapshot = phase_of(trainer, self._events), self._snapshot()
        if self._held is not None and self.holds_step:
            phase, snapshot, lacks = self._held_phase, self._held, False
        elif phase is Phase.VALIDATING and self._before_validation is not None:
            snapshot, lacks = self._before_validation, False
        else:
            lacks = has_accumulated(trainer, phase) and trainer.lightning_module.automatic_optimization
        if phase is Phase.VALIDATED and self._before_validation is not None:
            memory, before = snapshot["memory"], self._before_validation
            memory["first_loop_iter"] = before["memory"]["first_loop_iter"]
            memory["current_fx"], snapshot["flags"] = before["memory"]["current_fx"], before["flags"]
        return {
            "phase": phase,
            "own": snapshot,
            "lacks_gradients": lacks,
            "cut": phase in (Phase.EPOCH_END, Phase.BETWEEN) and is_cut(trainer),
            "buckets": None if phase is Phase.MID_BATCH else bucket_layout(trainer.strategy.model),
            "facts": self.loaders.facts(snapshot["batches"]),
        }

    def end(self) -> None:
        """Record the normal end of the fit: a checkpoint that is saved later has the current state."""
        self._noted = self._note() if self.runs else self._noted

    @property
    def is_at_end(self) -> bool:
        """Whether the fit has ended, without a step since."""
        return self._noted is not None and bool(self._noted["own"]["step"] == self._step)

    @property
    def holds_step(self) -> bool:
        """Whether gradients have been accumulated since an optimizer step whose state is available."""
        held, phase = self._held, phase_of(self._trainer, self._events)
        return held is not None and has_accumulated(self._trainer, phase) and bool(held["step"] == self._step)

    @property
    def _step(self) -> tuple[int, int]:
        """Completed epochs and optimizer steps; a state from before an epoch's end does not count it."""
        return counts(self._trainer.fit_loop.epoch_progress.current).processed, self._trainer.global_step

    def _end_batch(self) -> None:
        """After an optimizer step, keep the state if a checkpoint may be saved before the next: that excludes gradients."""
        self._before_validation = None
        if not has_accumulated(self._trainer, Phase.STEP):
            self._hold(Phase.STEP)

    def begin_batches(self) -> None:
        """Before an epoch's first batch, keep the state as after a step."""
        self._hold(Phase.MID_BATCH)

    def _hold(self, phase: Phase) -> None:
        is_kept = saves_within(self._trainer, self._steps_are_long())
        self._held, self._held_phase = self._snapshot(full=True) if is_kept else None, phase

    def _note_validation(self) -> None:
        self._before_validation = self._snapshot(full=True)

    def _snapshot(self, full: bool = False) -> RankState:
        """The state for a checkpoint: :meth:`_now`, and plain attributes."""
        return {**self._now(full), "attributes": self.attributes.stored()}

    def _now(self, full: bool = False, looks: bool = True) -> RankState:
        """This rank's state.

        Args:
            full: Whether to include everything that a later checkpoint would take from the Trainer.
            looks: Whether to walk over the module again, as submodules may have been added.

        """
        trainer, loop = self._trainer, self._trainer.fit_loop.epoch_loop
        children, parameters = self.modules.look() if looks else self.modules.recent()
        batch = loop.batch_progress.current
        taken = batch.ready if phase_of(trainer, self._events) is not Phase.MID_BATCH else batch.completed
        return {
            "random": self.random.take(),
            "epoch_random": self.start.random,
            "metrics": metric_states(trainer, children),
            "memory": trainer_memory(trainer),
            "loaders": self.loaders.positions(taken),
            "flags": module_flags(children, parameters),
            "batches": taken,
            "step": self._step,
            "gradients": self._gradients.take(),
            "fit_loop": loop_state(trainer.fit_loop) if full else None,
            "callbacks": callback_states(trainer) if full else None,
            "buffers": copied(buffers_of(trainer, children)),
        }

    def hold(self, looks: bool = True) -> FitEntry:
        """This rank's current state, for :meth:`resume_from`. Not collective. ``looks`` is as for :meth:`_now`."""
        phase, snapshot = phase_of(self._trainer, self._events), self._now(full=True, looks=looks)
        facts = cast("FitEntry", self.loaders.facts(snapshot["batches"]))
        return {**facts, "phase": phase.value, "cut": False, "own": snapshot}

    def prepare_alone(self) -> None:
        """Run a fit's preparation for its first epoch without collectives, as the ranks that this one joins have run it."""
        self.loaders.defer(True)
        self._trainer.fit_loop.setup_data()
        self._trainer.fit_loop.on_run_start()

    def resume_from(self, held: FitEntry) -> None:
        """Make the next run of the loops resume from the result of :meth:`hold`, of this rank or of another one."""
        self._loaded, loop = held, held["own"]["fit_loop"]
        assert loop is not None
        self._trainer.should_stop = False
        self._trainer.fit_loop.load_state_dict(plain_copy(loop))
        set_reloads(self._trainer, held["own"]["memory"]["reloads"])
        self.loaders.defer(True)

    def load(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint's state until the loops run."""
        state = checkpoint.get(STATE)
        if self.runs or (state is not None and "phase" not in state):  # a callback restores the state before its trial
            return
        self._loaded = state
        if self._loaded is None:
            rank_zero_warn(
                "The checkpoint was written without AutoResume: Lightning starts the loaders over, so if it was made within"
                " an epoch some samples are seen twice and others never. HINT: keep AutoResume among the callbacks."
            )
        self.loaders.defer(self._loaded is not None)

    def _run(self, run: Callable[[], None]) -> None:
        if self._events.is_trial:
            self._try(run)
            return
        if self._has_tried and self.found is not None and not self.runs:
            # The trial has restored its start, and Lightning has dropped the checkpoint that was to be loaded then.
            with reading_own_objects(self._trainer):
                self._trainer._checkpoint_connector.restore(*self.found)
        self.runs = True
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return run()
        if loaded["cut"] and reopen_epoch(self._trainer):
            loaded["phase"] = Phase.STEP.value
        if begins := "own" not in loaded:
            self._events.loads_loaders = len(loaded["ranks"]) != self.loaders.place[0]
            reload_as(self._trainer, self.loaders.own_of(loaded["ranks"])["memory"].get("reloads"))
        hooks = loaded.get("again", lambda: None)
        resume_fit(self._trainer, Phase(loaded["phase"]), lambda fetcher: self._prepare(loaded, fetcher), begins, hooks)

    def _try(self, run: Callable[[], None]) -> None:
        self._has_tried = True
        if self._loaded is not None:  # its loaders are deferred until their position is set
            self.loaders.defer(False)
            self._trainer.fit_loop._combined_loader = None
        run()
        self.loaders.defer(self._loaded is not None)

    def _prepare(self, loaded: FitEntry, fetcher: DataFetcher | None) -> None:
        """Restore the position; called by the loops, once everything is loaded and the start hooks have run."""
        trainer, phase, (size, rank) = self._trainer, Phase(loaded["phase"]), self.loaders.place
        self.attributes.begin()
        if fetcher is not None and phase is not Phase.BETWEEN:
            begin_epoch_again(trainer)
            self.start.is_due = True
        if "own" in loaded:
            self._find_place(loaded, loaded["own"], fetcher)
            self._restore(loaded["own"], phase)
        elif len(loaded["ranks"]) == size and self.loaders.fits(loaded):
            own = loaded["ranks"][rank]
            self._find_place(loaded, own, fetcher)
            rebuild_as(trainer.strategy.model, loaded["buckets"])
            self._gradients.put(own.get("gradients", {}), loaded.get("gradients", {}))
            self._restore(own, phase)
            if message := stretch_schedules(trainer, self.loaders.step_ratio(loaded)):
                rank_zero_info(
                    f"accumulate_grad_batches was {loaded['accumulate']} and is {trainer.accumulate_grad_batches} now. "
                    f"Each sample of the epoch is seen once, in other steps. {message}"
                )
        else:
            self.start.enter(None, None)
            restore_from_other_ranks(trainer, self.loaders, self.attributes, loaded, fetcher)
            self._gradients.put_mean([one.get("gradients", {}) for one in loaded["ranks"]], loaded.get("gradients", {}))
        if phase is Phase.MID_BATCH:
            rank_zero_info("The checkpoint was saved within a batch: it is trained on again, with other random draws.")
        if phase in (Phase.STEP, Phase.MID_BATCH) and not has_accumulated(trainer, phase):
            self._hold(phase)  # in case a checkpoint is saved before the end of the next step

    def _find_place(self, loaded: FitEntry, own: RankState, fetcher: DataFetcher | None) -> None:
        self.loaders.seek(own["loaders"], restart=fetcher is None)
        if fetcher is not None:
            self.loaders.keep_deal(loaded, own["loaders"])
        self.start.enter(fetcher, own.get("epoch_random"))
        if fetcher is not None:
            self.loaders.count_cycles(own.get("batches", loaded.get("batches", 0)), own["loaders"])

    def _restore(self, own: RankState, phase: Phase) -> None:
        trainer = self._trainer
        restore_buffers(buffers_of(trainer), own["buffers"])
        restore_module_flags(trainer.lightning_module, own.get("flags"))
        self.attributes.load(own.get("attributes", {}))
        restore_metrics(trainer, own["metrics"])
        restore_callback_states(trainer, own["callbacks"] or {})
        restore_trainer_memory(trainer, own["memory"])
        if phase is not Phase.BETWEEN:
            restore_logged(trainer, own["metrics"])
        self.random.put(own["random"])

    def release(self) -> None:
        """Release hooks and loaders, at the end of the fit."""
        self.loaders.release()
        self._gradients.release()
