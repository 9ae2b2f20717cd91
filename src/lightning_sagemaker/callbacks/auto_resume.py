# SPDX-License-Identifier: Apache-2.0
"""A restarted job resumes automatically."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.guard import TakenOver
from lightning_sagemaker._compat.loops import LoopEvents, events_of
from lightning_sagemaker._compat.trainer import callback_of, is_fast_dev_run, is_tuning
from lightning_sagemaker._compat.unfinished_batch import UnfinishedBatch
from lightning_sagemaker._lightning import Callback, rank_zero_info
from lightning_sagemaker.callbacks.accumulation import saves_on_exception
from lightning_sagemaker.callbacks.completed_fits import complete, completed
from lightning_sagemaker.callbacks.copied_by_arguments import CopiedByArguments
from lightning_sagemaker.callbacks.fit_state import FitState
from lightning_sagemaker.callbacks.late_saves import LateSaves
from lightning_sagemaker.callbacks.logged_runs import load_logged_runs, save_logged_runs
from lightning_sagemaker.callbacks.own_objects import reading_own_objects
from lightning_sagemaker.callbacks.places import HasFolder, checkpoint_folder, is_remote, name_of, remote_io
from lightning_sagemaker.callbacks.shared_folder import check_on_all_hosts, searched
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.find import STATE, find_checkpoint
from lightning_sagemaker.checkpoint.pruned_weights import ENTRY as PRUNED
from lightning_sagemaker.checkpoint.pruned_weights import pruned_weights

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, LightningModule, PathLike, Trainer


class AutoResume(CopiedByArguments, HasFolder, Callback):
    """Makes ``trainer.fit`` resume from the newest complete checkpoint, if there is one and no ``ckpt_path`` was passed.

    Rank zero selects the checkpoint with the most steps and broadcasts its path, so all ranks load the same one.
    Checkpoints, whatever triggers them, include what Lightning omits: loader positions, random states of all ranks and
    loader workers, metric states, callback states, and the position in the loop. A run resumed with the same world size
    trains on the same samples with the same random numbers as an uninterrupted one. State that cannot be restored, such as
    the position in an ``IterableDataset``, is logged at the start.

    A script may call ``fit`` several times (folds, or pretraining and then fine-tuning): each fit resumes from its own
    checkpoints, and not from those of fits that the same process has completed.

    Args:
        dirpath: Folder of the checkpoints. Default: the one that a :class:`~lightning_sagemaker.SpotInterruption` or the
            Trainer's ``ModelCheckpoint`` was given, in a job the checkpoint folder, else ``checkpoints`` in the Trainer's
            ``default_root_dir``.
        weights_only: Whether to load only tensors, plain containers, and objects of classes that the script's own
            hyperparameters and callbacks use. ``False`` allows the files to run code: use it for trusted checkpoints
            only.
        search: Whether to search for a checkpoint; False to only save and restore the state.

    Attributes:
        steps_are_long: Whether gradient accumulation takes so long that a stop does not wait for the step.
        fits: Fits that this process had completed before, with checkpoints in the same folder.

    """

    def __init__(self, dirpath: str | Path | None = None, weights_only: bool = True, search: bool = True) -> None:
        self.dirpath, self._weights_only, self._search = dirpath, weights_only, search
        self._in_memory: Callable[[int], str | None] | None = None
        self._events: LoopEvents | None = None
        self._state: FitState | None = None
        self._ended: FitState | None = None
        self._late_saves: LateSaves | None = None
        self._unfinished: UnfinishedBatch | None = None
        self.steps_are_long, self.fits = False, 0
        self._taken = TakenOver()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Prepare to search for a checkpoint, at the point where the Trainer loads one."""
        if stage == "fit" and self._state is None:
            self._events = events_of(trainer)
            self._ended = None
            self._state = FitState(trainer, self._events, lambda: self.steps_are_long)
            self._late_saves = LateSaves(trainer, self._events)
            self._unfinished = UnfinishedBatch(trainer, self._events, lambda: saves_on_exception(trainer))
            self.fits = completed(checkpoint_folder(trainer, self.dirpath))
            # The Trainer's own ckpt_path may be that of an evaluation before, or of a finder's trial.
            self._taken.take(trainer._checkpoint_connector, "_restore_modules_and_callbacks", self._restoring(trainer))

    def _restoring(self, trainer: Trainer) -> Callable[[Callable[..., None]], Callable[..., None]]:
        def searching(restore: Callable[..., None]) -> Callable[..., None]:
            def restored(checkpoint_path: PathLike | None = None, *args: object, **kwargs: object) -> None:
                self._taken.restore()
                if not trainer.strategy.restore_checkpoint_after_setup:
                    _keep_double(trainer)
                if checkpoint_path is not None:
                    self.fit_state.found = str(checkpoint_path), None
                elif (self._search or self._in_memory) and not is_tuning(trainer) and not is_fast_dev_run(trainer):
                    with reading_own_objects(trainer):
                        self._resume_from_newest(trainer)
                restore(checkpoint_path, *args, **kwargs)

            return restored

        return searching

    def _resume_from_newest(self, trainer: Trainer) -> None:
        folder = checkpoint_folder(trainer, self.dirpath)
        found, failure = trainer.strategy.broadcast(self._look(trainer, folder))
        if failure is not None:
            raise CheckpointError(failure)
        path, step = found or (None, 0)
        if self._in_memory is not None and (own := self._in_memory(step)) is not None:
            path = own
        elif path is None:
            if self._search:
                rank_zero_info(f"No checkpoint in {folder}: starting from scratch.")
            return
        else:
            rank_zero_info(f"Resuming from step {step}: {path}")
        if not is_remote(path):
            check_on_all_hosts(path, trainer.strategy.reduce_boolean_decision(Path(path).exists()))
        # As Trainer.fit(ckpt_path=...) starts loading; the rest of it runs in any case.
        trainer._checkpoint_connector.resume_start(path, weights_only=self._weights_only)
        self.fit_state.found = path, self._weights_only

    def _look(self, trainer: Trainer, folder: str) -> tuple[tuple[str, int] | None, str | None]:
        if not trainer.is_global_zero or not self._search:
            return None, None
        return searched(folder, lambda: self._find(trainer, folder))

    def _find(self, trainer: Trainer, folder: str) -> tuple[str, int] | None:
        if is_remote(folder):
            return remote_io(trainer).newest(folder, rank_zero_info, self.fits, self._weights_only)
        found = find_checkpoint(folder, rank_zero_info, self._weights_only, self.fits)
        return None if found is None else (str(found.path), found.step)

    def next_path(self, trainer: Trainer) -> str:
        """Path for a checkpoint of the current step, where a restarted run looks for it."""
        return f"{checkpoint_folder(trainer, self.dirpath)}/{name_of(trainer.global_step, self.fits)}"

    def search(self) -> None:
        """Enable the search for a checkpoint, as the job was restarted."""
        self._search = True

    def look_in(self, memory: Callable[[int], str | None]) -> None:
        """Resume from a checkpoint in memory, if there is one.

        Args:
            memory: Called on all ranks with a minimum number of steps; returns this rank's file of a checkpoint, or None.

        """
        self._in_memory = memory

    @property
    def fit_state(self) -> FitState:
        """The state of the current fit."""
        assert self._state is not None
        return self._state

    @property
    def holds_step(self) -> bool:
        """Whether the state after the last optimizer step is available, though gradients have been accumulated since."""
        return self._state is not None and self._state.holds_step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Keep the state before an epoch's first step."""
        if batch_idx == 0 and self._state is not None:
            self._state.begin_batches()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record that a validation within training is complete, except for its last hooks."""
        if self._events is not None and not trainer.sanity_checking:
            self._events.validated = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint) -> None:
        """Add the states of all ranks. Collective."""
        state = self._state
        if state is None and self._ended is not None and self._ended.is_at_end:
            state = self._ended
        elif trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        if state is not None:
            state.save(checkpoint)
            checkpoint[STATE]["fits"] = self.fits
            checkpoint[STATE][PRUNED] = pruned_weights(trainer)
            _leave_out_functions(checkpoint)
            save_logged_runs(trainer, checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint) -> None:
        """Keep the states until training starts."""
        if self._state is not None:
            _settle_stop(trainer, checkpoint)
            self._state.load(checkpoint)
            load_logged_runs(trainer, checkpoint)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the Trainer and its loaders to their original state; a script may still save."""
        if self._state is not None:
            if self._state.runs:
                complete(checkpoint_folder(trainer, self.dirpath))
            self._state.end()
            self._ended = self._state
        self._release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """As :meth:`teardown`, which is not called then, but after the other callbacks, which may save a checkpoint now."""
        taken = TakenOver()
        if self._unfinished is not None:
            self._unfinished.warn()

        def at_the_end(end: Callable[[BaseException], None]) -> Callable[[BaseException], None]:
            def ended(exception: BaseException) -> None:
                taken.restore()
                end(exception)
                self._release()

            return ended

        taken.take(trainer.strategy, "on_exception", at_the_end)

    def _release(self) -> None:
        self._taken.restore()
        if self._state is not None and self._events is not None:
            self._state.release()
            self._events.release()
            self._state = self._events = None
        if self._late_saves is not None:
            self._late_saves.release()
            self._late_saves = None
        if self._unfinished is not None:
            self._unfinished.release()
            self._unfinished = None


def _settle_stop(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """A restarted job ends where ``trainer.should_stop`` has ended it; a script that names its checkpoint trains on."""
    memories = [rank["memory"] for rank in checkpoint.get(STATE, {}).get("ranks", [])]
    if not any(memory["should_stop"] for memory in memories):
        return
    if trainer.ckpt_path is None:
        rank_zero_info(
            "A callback, such as EarlyStopping, had stopped training when the checkpoint was saved, so it ends here."
            " HINT: to train on, name the checkpoint: trainer.fit(..., ckpt_path=...)."
        )
        return
    for memory in memories:
        memory["should_stop"] = False


def _keep_double(trainer: Trainer) -> None:
    """Lightning loads weights before it converts the module to the Trainer's precision, which rounds those of float64."""
    if trainer.precision == "64-true":
        trainer.precision_plugin.convert_module(trainer.lightning_module)


def _leave_out_functions(checkpoint: Checkpoint) -> None:
    """Remove functions, as of SWALR before torch 2.6, which sets them again: ``weights_only`` would refuse them."""
    schedules = list(checkpoint["lr_schedulers"])
    schedules += [state.get("scheduler_state") for state in checkpoint["callbacks"].values() if isinstance(state, dict)]
    for state in filter(None, schedules):
        for name in [name for name, value in state.items() if inspect.isfunction(value)]:
            del state[name]


def resume_from_newest(trainer: Trainer) -> None:
    """Make the Trainer's AutoResume, if there is one, search for the newest checkpoint."""
    if (resume := callback_of(trainer, AutoResume)) is not None:
        resume.search()


def auto_resume_of(trainer: Trainer) -> AutoResume:
    """The one among a Trainer's callbacks, with which :class:`~lightning_sagemaker.SpotInterruption` saves."""
    found = callback_of(trainer, AutoResume)
    assert found is not None
    return found
