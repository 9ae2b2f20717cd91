# SPDX-License-Identifier: Apache-2.0
"""A strategy with sharded checkpoints."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_sagemaker._lightning import MisconfigurationException
from lightning_sagemaker.checkpoint.s3 import S3CheckpointIO
from lightning_sagemaker.checkpoint.sharded import ShardedCheckpointer

if TYPE_CHECKING:
    from lightning_sagemaker._types import CheckpointIO, PathLike


class ShardedCheckpoints:
    """Mixin before a strategy of Lightning."""

    local_rank: int
    _checkpoint_io: CheckpointIO | None

    @cached_property
    def _checkpointer(self) -> ShardedCheckpointer:
        return ShardedCheckpointer(self.local_rank, self._checkpoint_io)

    @property
    def remote_checkpoints(self) -> S3CheckpointIO:
        """Reads and writes S3; callbacks use it to list checkpoints."""
        return self._checkpointer.remote


def local_target(path: PathLike) -> Path:
    """``path`` as a path of a file system.

    Raises:
        MisconfigurationException: If it is a URL, which would be used as the name of a folder.

    """
    if "://" in str(path):
        raise MisconfigurationException(
            f"fabric.save was given {str(path)!r}, but Fabric's sharded strategies write to a file system. HINT: save to"
            " job.checkpoint_dir, which SageMaker copies to S3."
        )
    return Path(path)
