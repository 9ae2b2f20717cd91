# SPDX-License-Identifier: Apache-2.0
"""The two halves of an all-reduce, in which each number is added up in one order wherever it stands.

Gloo's and nccl's own sums depend, by a rounding, on where a number is in what is sent. Here each process is sent one slice
by all others, adds it up in the order of the ranks, in float32 if what is sent has fewer bits, and sends the result to all.
The bytes are those of a ring: (N - 1) / N of the vector in each half.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the newer name, where there is one


class ScatterSum:
    """From whole vectors to one slice of their sum.

    Args:
        group: Process group.
        wire: Type in which numbers are sent, if it has fewer bits than theirs.

    """

    def __init__(self, group: Any, wire: torch.dtype | None = None) -> None:
        self._group, self._wire = group, wire
        self._size = dist.get_world_size(group)

    def __call__(self, vector: Tensor) -> Tensor:
        """Add up. Collective.

        Args:
            vector: One dimension, a multiple of the group's size long.

        Returns:
            This process's slice, in the vector's type.

        """
        sent = narrow(vector, self._wire)
        received = torch.empty_like(sent)
        dist.all_to_all_single(_bytes(received), _bytes(sent), group=self._group)
        own, *others = received.view(self._size, -1)
        total = own.float() if own.itemsize < 4 else own
        for other in others:
            total += other
        result: Tensor = total.to(vector.dtype)
        return result


class Gather:
    """From one slice on each process to the whole vector on all.

    Args:
        group: Process group.
        wire: Type in which numbers are sent, and left, if it has fewer bits than theirs.

    """

    def __init__(self, group: Any, wire: torch.dtype | None = None) -> None:
        self._group, self._wire = group, wire
        self._size = dist.get_world_size(group)

    def __call__(self, part: Tensor) -> Tensor:
        """Put together. Collective.

        Args:
            part: One dimension, of the same length on all processes.

        """
        sent = narrow(part, self._wire)
        whole = sent.new_empty(self._size * sent.numel())
        _gather(_bytes(whole), _bytes(sent), group=self._group)
        return whole


def narrow(tensor: Tensor, wire: torch.dtype | None) -> Tensor:
    """In the type that is sent, if it has fewer bits."""
    return tensor if wire is None or tensor.itemsize <= wire.itemsize else tensor.to(wire)


def _bytes(tensor: Tensor) -> Tensor:
    """What is only sent needs no type, of which gloo does not know all."""
    return tensor.view(torch.uint8)
