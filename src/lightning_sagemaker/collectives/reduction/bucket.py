# SPDX-License-Identifier: Apache-2.0
"""Protocols: DDP's gradient bucket, and what reduces it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Bucket(Protocol):
    """As ``torch.distributed.GradBucket``."""

    def index(self) -> int:
        """Index of the bucket."""

    def buffer(self) -> Tensor:
        """All gradients, flattened and concatenated."""

    def gradients(self) -> Sequence[Tensor]:
        """Each parameter's gradient, in its shape; views of the buffer."""

    def parameters(self) -> Sequence[Tensor]:
        """The parameters of these gradients."""

    def is_last(self) -> bool:
        """Whether this is the last bucket of the backward pass."""


class BucketReducer(Protocol):
    """Reduces the buckets that a communication hook receives."""

    def reduce_bucket(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """Start to replace a bucket's gradients by their mean over all processes."""

    def uncounted(self) -> AbstractContextManager[None]:
        """Context in which reductions are not part of a training step and leave the state unchanged."""
