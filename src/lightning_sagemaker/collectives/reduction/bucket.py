# SPDX-License-Identifier: Apache-2.0
"""What a reduction needs of DDP's buckets, and DDP of a reduction."""

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
        """Its number."""

    def buffer(self) -> Tensor:
        """All gradients, one after the other."""

    def gradients(self) -> Sequence[Tensor]:
        """The gradients, in their shapes."""

    def parameters(self) -> Sequence[Tensor]:
        """What they are of."""

    def is_last(self) -> bool:
        """Whether no other follows in this step."""


class BucketReducer(Protocol):
    """What a communication hook hands a bucket to."""

    def reduce_bucket(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """Begin to replace a bucket's gradients by their mean over all processes."""

    def uncounted(self) -> AbstractContextManager[None]:
        """While reductions are outside a step."""
