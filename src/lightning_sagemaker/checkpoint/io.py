# SPDX-License-Identifier: Apache-2.0
"""The checkpoint plugin of the strategies, which writes atomically."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from lightning_sagemaker._lightning import TorchCheckpointIO
from lightning_sagemaker.checkpoint.atomic_write import atomic_write

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, PathLike


class SafeCheckpointIO(TorchCheckpointIO):
    """Lightning's plugin with atomic writes: a local file is written under a temporary name, flushed, and renamed."""

    @override
    def save_checkpoint(self, checkpoint: Checkpoint, path: PathLike, storage_options: object = None) -> None:
        """Write a checkpoint.

        Raises:
            CheckpointError: If there is no space, or no permission; an existing file at ``path`` is unchanged.

        """
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with atomic_write(Path(path)) as file:
            torch.save(checkpoint, file)
