# SPDX-License-Identifier: Apache-2.0
"""A restarted job goes on where it ended, by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from lightning_sagemaker._lightning import Callback, rank_zero_info
from lightning_sagemaker.callbacks.places import checkpoint_folder, is_remote, remote_io
from lightning_sagemaker.checkpoint.metric_state import metric_states, restore_logged, restore_metrics
from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state
from lightning_sagemaker.checkpoint.resume import find_checkpoint
from lightning_sagemaker.checkpoint.whole import CheckpointError

_STATES, _METRICS = "random_states", "metric_states"


class AutoResume(Callback):
    """``trainer.fit`` goes on from the newest whole checkpoint, if there is one and no ``ckpt_path`` was given.

    Rank zero looks, by the number of steps in the files, and tells the others, so all load the same. The states of the
    random number generators of all ranks are part of the checkpoints; with as many ranks as before they are restored, so
    that dropout goes on as it would have. For that, what is drawn between two training steps (in a validation, by a new
    iterator over a loader) does not change what the next step draws. So is what metrics have summed up in an epoch.

    Args:
        dirpath: Where to look. Default: the folder of the Trainer's ``ModelCheckpoint``, in a job the checkpoint folder,
            else ``checkpoints`` in the Trainer's ``default_root_dir``.
        weights_only: Read data only. ``False`` runs code from the files: for checkpoints of your own alone.
        search: False: only keep and restore the states of the random number generators.

    """

    def __init__(self, dirpath: str | Path | None = None, weights_only: bool = True, search: bool = True) -> None:
        self._dirpath, self._weights_only, self._search = dirpath, weights_only, search
        self._loaded: Any = None
        self._held: dict[str, Any] | None = None
        self._logged: dict[str, Any] | None = None
        self._made: list[str] = []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Look for a checkpoint, before the Trainer would load one."""
        if stage == "fit" and not trainer.strategy.restore_checkpoint_after_setup:
            self._resume(trainer)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """As :meth:`setup`, for strategies that load into a model that is sharded already."""
        if trainer.strategy.restore_checkpoint_after_setup:
            self._resume(trainer)

    def _resume(self, trainer: Any) -> None:
        if not self._search or trainer.ckpt_path is not None:
            return
        folder = checkpoint_folder(trainer, self._dirpath)
        path, failure = trainer.strategy.broadcast(self._look(trainer, folder))
        if failure is not None:
            raise CheckpointError(failure)
        if path is None:
            rank_zero_info(f"No checkpoint in {folder}: a fresh start.")
            return
        if not is_remote(path) and not trainer.strategy.reduce_boolean_decision(Path(path).exists()):
            raise CheckpointError(
                f"{path} is on the first host, but not on all. HINT: give all hosts the same checkpoint_s3_uri or folder."
            )
        # Where Trainer.fit(ckpt_path=...) begins to load; the rest of it follows in any case.
        trainer._checkpoint_connector.resume_start(path, weights_only=self._weights_only)

    def _look(self, trainer: Any, folder: str) -> tuple[str | None, str | None]:
        if not trainer.is_global_zero:
            return None, None
        try:
            found = self._find(trainer, folder)
        except CheckpointError as error:
            return None, str(error)
        except Exception as error:  # raised here alone, it would leave the others waiting
            return None, (
                f"{folder} could not be searched for checkpoints ({type(error).__name__}: {error}). HINT: name a folder that"
                " this process may read."
            )
        if found is None:
            return None, None
        rank_zero_info(f"Going on from step {found[1]}: {found[0]}")
        return found[0], None

    def _find(self, trainer: Any, folder: str) -> tuple[str, int] | None:
        if is_remote(folder):
            newest: tuple[str, int] | None = remote_io(trainer).newest(folder, rank_zero_info)
            return newest
        found = find_checkpoint(folder, rank_zero_info, self._weights_only)
        return None if found is None else (str(found.path), found.step)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Hold the state over the end of an epoch."""
        self._restore_logged(trainer)
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._hold()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The checkpoint may be of a validation at an epoch's end: no batch came after it."""
        self._restore_logged(trainer)

    def _restore_logged(self, trainer: Any) -> None:
        if self._logged is not None:
            self._made = restore_logged(trainer, self._logged)
            self._logged = None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """What steps log, they make themselves, with what only they know."""
        for key in self._made:
            trainer.fit_loop.epoch_loop._results.pop(key, None)
        self._made = []

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Hold the state over a validation within training."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._hold()

    def _hold(self) -> None:
        if self._held is None:
            self._held = random_state()

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Go on with what was held, or loaded."""
        if self._held is not None:
            restore_random_state(self._held)
            self._held = None

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the states of all ranks. Collective."""
        own: dict[str, Any] = {_STATES: random_state() if self._held is None else self._held}
        if trainer.state.fn == "fit" and not trainer.sanity_checking and not _is_over(trainer):
            own[_METRICS] = metric_states(pl_module, trainer.fit_loop.epoch_loop._results)
            if self._logged is not None:  # no batch came since these were read
                own[_METRICS]["logged"] = self._logged["logged"]
        states: list[Any] = [own]
        if trainer.world_size > 1:
            states = [None] * trainer.world_size
            dist.all_gather_object(states, own)
        for name in own:
            checkpoint[name] = [state[name] for state in states]

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep them until training begins: what comes before draws numbers, and resets metrics."""
        self._loaded = {name: checkpoint[name] for name in (_STATES, _METRICS) if name in checkpoint}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The first step goes on with this rank's state."""
        loaded, self._loaded, self._held = self._loaded or {}, None, None
        counts = {len(states) for states in loaded.values()}
        if counts - {trainer.world_size}:
            rank_zero_info(
                f"The checkpoint is of {counts.pop()} processes and there are {trainer.world_size}: random numbers (dropout)"
                " and what metrics have summed up in this epoch begin anew."
            )
            return
        if _STATES in loaded:
            self._held = loaded[_STATES][trainer.global_rank]
        if _METRICS in loaded:
            self._logged = loaded[_METRICS][trainer.global_rank]
            restore_metrics(pl_module, self._logged)


def _is_over(trainer: Any) -> bool:
    """Whether the epoch is, for a Trainer that goes on from here: what was summed up in it has been seen.

    So it is in the hooks of its end, and for Lightning in those of the last batch already.
    """
    epoch, batch = trainer.fit_loop.epoch_progress.current, trainer.fit_loop.epoch_loop.batch_progress
    is_last = batch.is_last_batch and batch.current.completed < batch.current.processed
    return bool(epoch.processed == epoch.ready or is_last)
