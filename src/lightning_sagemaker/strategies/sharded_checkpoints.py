# SPDX-License-Identifier: Apache-2.0
"""A strategy with sharded checkpoints."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from lightning_sagemaker.checkpoint.parts import CheckpointParts
from lightning_sagemaker.checkpoint.s3 import S3CheckpointIO

if TYPE_CHECKING:
    from lightning_sagemaker._types import CheckpointIO


class ShardedCheckpoints:
    """Mixin before a strategy of Lightning."""

    local_rank: int
    _checkpoint_io: CheckpointIO | None

    @cached_property
    def _parts(self) -> CheckpointParts:
        return CheckpointParts(self.local_rank, self._checkpoint_io)

    @property
    def remote_checkpoints(self) -> S3CheckpointIO:
        """Reads and writes S3; callbacks use it to list checkpoints."""
        return self._parts.remote
