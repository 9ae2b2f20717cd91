# SPDX-License-Identifier: Apache-2.0
"""Finds a custom loop's checkpoints, and writes them: a failure is raised on all ranks together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightning_sagemaker._lightning import TorchCheckpointIO, rank_zero_info
from lightning_sagemaker.callbacks.fabric_data import KEEP_DATA
from lightning_sagemaker.callbacks.places import names_in, outdated, remove
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.find import find_checkpoint
from lightning_sagemaker.checkpoint.io import SafeCheckpointIO

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, Fabric, PathLike


class NotingCheckpointIO(SafeCheckpointIO):
    """Stores a failure until all ranks have synchronized, as Fabric does after a checkpoint."""

    failure: str | None = None

    def save_checkpoint(self, checkpoint: Checkpoint, path: PathLike, storage_options: object = None) -> None:
        """Write a checkpoint, or store the error."""
        self.failure = None
        try:
            super().save_checkpoint(checkpoint, path, storage_options)
        except Exception as error:
            self.failure = str(error)


def note_failures(fabric: Fabric) -> None:
    """Have a strategy's usual plugin store its failures.

    Raises:
        ValueError: If the strategy uses no plugin for checkpoints, as it shards parameters.

    """
    try:
        plugin = fabric.strategy.checkpoint_io
    except NotImplementedError:
        raise ValueError(
            f"{type(fabric.strategy).__name__} writes sharded checkpoints itself, so InterruptibleLoop cannot be used with"
            " it. HINT: use strategy='smddp', or the Trainer with AutoResume."
        ) from None
    if type(plugin) is TorchCheckpointIO:
        fabric.strategy.checkpoint_io = NotingCheckpointIO()


def find_of_loop(folder: Path, weights_only: bool, loops: int) -> str | None:
    """Path of the newest complete checkpoint of a loop, None if there is none.

    Args:
        folder: Folder of the checkpoints.
        weights_only: Whether to load data only.
        loops: Loops that this process had completed in the folder before.

    Raises:
        CheckpointError: If it cannot be used.

    """
    found = find_checkpoint(folder, rank_zero_info, weights_only, loops, KEEP_DATA)
    if found is None:
        rank_zero_info(f"No checkpoint in {folder}: starting from scratch.")
        return None
    if not found.exact:
        raise CheckpointError(
            f"{found.path} was not written by an InterruptibleLoop. HINT: give the loop its own folder."
        )
    rank_zero_info(f"Resuming from step {found.step}: {found.path}")
    return str(found.path)


def remove_old(folder: Path, step: int, keep: int, loops: int) -> None:
    """Remove a loop's older checkpoints; arguments as of :func:`~lightning_sagemaker.callbacks.places.outdated`."""
    for name in outdated(names_in(None, str(folder)), step, keep, loops):
        remove(None, str(folder / name))
