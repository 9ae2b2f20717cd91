# SPDX-License-Identifier: Apache-2.0
"""A restarted job goes on where it ended, by itself."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lightning_sagemaker._lightning import Callback, ModelCheckpoint, rank_zero_info
from lightning_sagemaker.checkpoint.resume import find_checkpoint
from lightning_sagemaker.checkpoint.whole import CheckpointError
from lightning_sagemaker.job import SageMakerJob

_STATES = "random_states"


class AutoResume(Callback):
    """``trainer.fit`` goes on from the newest whole checkpoint, if there is one and no ``ckpt_path`` was given.

    Rank zero looks, by the number of steps in the files, and tells the others, so all load the same. The states of the
    random number generators of all ranks are part of the checkpoints; with as many ranks as before they are restored, so
    that dropout goes on as it would have. For that, what is drawn between two training steps (in a validation, by a new
    iterator over a loader) does not change what the next step draws.

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
            newest: tuple[str, int] | None = _remote_io(trainer).newest(folder, rank_zero_info)
            return newest
        found = find_checkpoint(folder, rank_zero_info, self._weights_only)
        return None if found is None else (str(found.path), found.step)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Hold the state over the end of an epoch."""
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._hold()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Hold the state over a validation within training."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._hold()

    def _hold(self) -> None:
        if self._held is None:
            self._held = _random_state()

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Go on with what was held, or loaded."""
        if self._held is not None:
            _restore_random_state(self._held)
            self._held = None

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the states of all ranks. Collective."""
        own = _random_state() if self._held is None else self._held
        states: list[Any] = [own]
        if trainer.world_size > 1:
            states = [None] * trainer.world_size
            dist.all_gather_object(states, own)
        checkpoint[_STATES] = states

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep them until training begins: what comes before draws numbers, too."""
        self._loaded = checkpoint.get(_STATES)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The first step goes on with this rank's state."""
        states, self._loaded, self._held = self._loaded, None, None
        if states is None:
            return
        if len(states) != trainer.world_size:
            rank_zero_info(
                f"The checkpoint is of {len(states)} processes and there are {trainer.world_size}: random numbers (dropout)"
                " begin anew."
            )
            return
        self._held = states[trainer.global_rank]


def checkpoint_folder(trainer: Any, dirpath: str | Path | None) -> str:
    """Where a Trainer's checkpoints are, unless ``dirpath`` says: a folder, or an address in S3."""
    if dirpath is not None:
        return str(dirpath).rstrip("/")
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is not None:
            return str(callback.dirpath).rstrip("/")
    job = SageMakerJob.from_environment()
    return str(job.checkpoint_dir) if job.in_container else str(Path(trainer.default_root_dir) / "checkpoints")


def is_remote(folder: str) -> bool:
    """Whether a folder is an address, not a place in the file system."""
    return "://" in folder


def names_in(trainer: Any, folder: str) -> list[str]:
    """Names of what is in a folder of checkpoints."""
    if is_remote(folder):
        found: list[str] = _remote_io(trainer).names(folder)
        return found
    place = Path(folder)
    return [path.name for path in place.iterdir()] if place.is_dir() else []  # it may be written beside the training


def remove(trainer: Any, path: str) -> None:
    """Remove a checkpoint, a file or a folder. The Trainer's strategies for sharded models cannot."""
    if is_remote(path):
        _remote_io(trainer).remove_checkpoint(path)
    elif Path(path).is_dir():
        shutil.rmtree(path)
    else:
        Path(path).unlink(missing_ok=True)


def _remote_io(trainer: Any) -> Any:
    io = trainer.strategy.checkpoint_io
    if not hasattr(io, "newest"):
        raise CheckpointError(
            f"checkpoints at an address were asked for, but the Trainer writes them by {type(io).__name__}, which cannot"
            " list them. HINT: pass Trainer(plugins=S3CheckpointIO())."
        )
    return io


def _random_state() -> dict[str, Any]:
    """Plain containers and tensors, which a checkpoint may hold."""
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": [state.cpu() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
    }


def _restore_random_state(state: dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
