# SPDX-License-Identifier: Apache-2.0
"""The two halves of an all-reduce whose sums do not depend on an element's position.

Gloo's and nccl's own sums depend, by rounding, on an element's position in the message. Here each process receives one
slice from all others, sums it in the order of the ranks, in float32 if the elements are sent with fewer bits, and sends the
result to all. The bytes are those of a ring: (N - 1) / N of the vector in each half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the newer name, where there is one


class ScatterSum:
    """From full vectors to one slice of their sum.

    Args:
        group: Process group.
        wire: dtype in which elements are sent, if it has fewer bits than theirs.
        divisor: Divisor of the sum. With ``wire``, elements are divided before sending, as in DDP.

    """

    def __init__(self, group: ProcessGroup | None, wire: torch.dtype | None = None, divisor: int = 1) -> None:
        self._group, self._wire, self._divisor = group, wire, divisor
        self._size = dist.get_world_size(group)

    def __call__(self, vector: Tensor) -> Tensor:
        """Reduce-scatter. Collective.

        Args:
            vector: One dimension, its length a multiple of the group's size. Not changed.

        Returns:
            This process's slice, in the vector's dtype.

        """
        is_narrowed = self._wire is not None and vector.itemsize > self._wire.itemsize
        sent = (vector / self._divisor).to(self._wire) if is_narrowed else vector
        received = torch.empty_like(sent)
        dist.all_to_all_single(_bytes(received), _bytes(sent), group=self._group)
        own, *others = received.view(self._size, -1)
        total = own.float() if own.itemsize < 4 else own
        for other in others:
            total += other
        if not is_narrowed and self._divisor != 1:
            total /= self._divisor
        result: Tensor = total.to(vector.dtype)
        return result


class Gather:
    """From one slice on each process to the full vector on all.

    Args:
        group: Process group.
        wire: dtype in which elements are sent and returned, if it has fewer bits than theirs.

    """

    def __init__(self, group: ProcessGroup | None, wire: torch.dtype | None = None) -> None:
        self._group, self._wire = group, wire
        self._size = dist.get_world_size(group)

    def __call__(self, part: Tensor) -> Tensor:
        """All-gather. Collective.

        Args:
            part: One dimension, of the same length on all processes.

        """
        sent = part if self._wire is None or part.itemsize <= self._wire.itemsize else part.to(self._wire)
        whole = sent.new_empty(self._size * sent.numel())
        _gather(_bytes(whole), _bytes(sent), group=self._group)
        return whole

    def into(self, vector: Tensor, part: Tensor) -> None:
        """All-gather into ``vector``, which may be shorter than the result by its padding. Collective.

        Args:
            vector: Output, overwritten.
            part: One dimension, of the same length on all processes.

        """
        if part.dtype == vector.dtype and self._wire is None and vector.numel() == self._size * part.numel():
            _gather(_bytes(vector), _bytes(part), group=self._group)
        else:
            vector.copy_(self(part)[: vector.numel()])


def _bytes(tensor: Tensor) -> Tensor:
    """A view as bytes: for sending, the dtype is irrelevant, and gloo does not support all of them."""
    return tensor.view(torch.uint8)
