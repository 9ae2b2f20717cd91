# SPDX-License-Identifier: Apache-2.0
"""The folder of a custom loop's checkpoints, and the checkpoints in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.callbacks.completed_fits import complete, completed
from lightning_sagemaker.callbacks.fabric_data import KEEP_DATA
from lightning_sagemaker.callbacks.places import check_keep, is_remote, name_of, names_in, outdated, remove
from lightning_sagemaker.callbacks.shared_folder import check_on_all_hosts, delete_or_warn, searched
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.find import find_checkpoint
from lightning_sagemaker.collectives.agreement import of_all

if TYPE_CHECKING:
    from lightning_sagemaker._types import Fabric


class LoopFolder:
    """The checkpoints of one loop.

    Args:
        fabric: Fabric, after its launch.
        folder: The folder.
        keep: Number of checkpoints to keep.
        weights_only: Whether to load data only.

    Attributes:
        loops: Loops of this process that had completed before, with checkpoints in the same folder.

    Raises:
        ValueError: If the folder is a URL, or ``keep`` is not at least 1.

    """

    def __init__(self, fabric: Fabric, folder: str | Path, keep: int, weights_only: bool) -> None:
        if is_remote(str(folder)):
            raise ValueError(f"{folder} is a URL. HINT: use a local folder; a job's checkpoint_s3_uri keeps it in S3.")
        self._fabric, self._folder = fabric, Path(folder).expanduser()
        self._keep, self._weights_only, self.loops = check_keep(keep), weights_only, 0

    def path(self, step: int) -> Path:
        """Path of the checkpoint after ``step`` batches."""
        return self._folder / name_of(step, self.loops)

    def newest(self) -> str | None:
        """The newest complete checkpoint of this loop; None if there is none. Collective.

        Raises:
            CheckpointError: On all ranks, if it cannot be used.

        """
        self.loops = completed(self._folder)
        looked = searched(str(self._folder), self._find) if self._fabric.is_global_zero else (None, None)
        path, failure = self._fabric.broadcast(looked)
        if failure is not None:
            raise CheckpointError(failure)
        if path is not None:
            check_on_all_hosts(path, all(of_all(Path(path).exists(), self._fabric.world_size)))
        return path

    def _find(self) -> str | None:
        found = find_checkpoint(self._folder, rank_zero_info, self._weights_only, self.loops, KEEP_DATA)
        if found is None:
            rank_zero_info(f"No checkpoint in {self._folder}: starting from scratch.")
            return None
        if not found.exact:
            raise CheckpointError(
                f"{found.path} was not written by an InterruptibleLoop. HINT: give the loop its own folder."
            )
        rank_zero_info(f"Resuming from step {found.step}: {found.path}")
        return str(found.path)

    def delete_older(self, step: int) -> None:
        """Delete checkpoints that are no longer needed after the one of ``step``, on rank zero."""
        if self._fabric.is_global_zero:
            delete_or_warn(str(self._folder), lambda: self._delete(step))

    def _delete(self, step: int) -> None:
        for name in outdated(names_in(None, str(self._folder)), step, self._keep, self.loops):
            remove(None, str(self._folder / name))

    def complete(self) -> None:
        """Record that the loop is complete."""
        complete(self._folder)
