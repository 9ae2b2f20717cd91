# SPDX-License-Identifier: Apache-2.0
"""Writes a custom loop's checkpoints: a failure is raised on all ranks together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_sagemaker._lightning import TorchCheckpointIO
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
