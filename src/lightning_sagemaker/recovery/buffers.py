# SPDX-License-Identifier: Apache-2.0
"""Buffers that a forward pass changes, such as BatchNorm's statistics: after a step all ranks have the first shard's.

DDP broadcasts rank zero's buffers before each forward pass, so its checkpoints contain rank zero's statistics only.
Here they are the first shard's, whichever rank trains on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_sagemaker.checkpoint.rank_buffers import LARGEST, repeats

FIRST = 0
"""The shard whose buffers are broadcast to all ranks."""


class SharedBuffers:
    """Synchronizes the buffers of the trained modules, those of up to 2^20 elements.

    Args:
        modules: Returns the trained modules.

    """

    def __init__(self, modules: Callable[[], Iterable[nn.Module]]) -> None:
        self._modules = modules
        self._places: list[tuple[nn.Module, str]] | None = None
        self._start: list[Tensor] = []
        self._of_shards: dict[int, list[Tensor]] = {}

    def _tensors(self) -> list[Tensor]:
        if self._places is None:
            children = dict.fromkeys(child for module in self._modules() for child in module.modules())
            self._places = [(child, name) for child in children for name in _changing(child)]
        return [getattr(child, name) for child, name in self._places]

    def now(self) -> list[Tensor]:
        """Copies of the current values."""
        return [tensor.detach().clone() for tensor in self._tensors()]

    def put(self, values: Sequence[Tensor]) -> None:
        """Restore what :meth:`now` has returned, here or on another rank."""
        with torch.no_grad():
            for tensor, value in zip(self._tensors(), values, strict=True):
                tensor.copy_(value)

    def begin_step(self) -> None:
        """Save the values at the start of a step, which are the same on all ranks."""
        self._start, self._of_shards = self.now(), {}

    @contextmanager
    def of_shard(self, shard: int) -> Iterator[None]:
        """Context for forward passes on an adopted shard's batches, which do not change this rank's own values."""
        own = self.now()
        self.put(self._of_shards.get(shard, self._start))
        try:
            yield
        finally:
            self._of_shards[shard] = self.now()
            self.put(own)

    @contextmanager
    def of_start(self) -> Iterator[None]:
        """Context for an evaluation between accumulated batches, with the values of the step's start."""
        own = self.now()
        self.put(self._start)
        try:
            yield
        finally:
            self.put(own)

    def of_first(self, source: int) -> list[Tensor]:
        """Broadcast the first shard's values at the end of a step. Collective.

        Args:
            source: Rank of the default group that has trained on it.

        """
        found = [one.contiguous() for one in self._of_first_shard()]
        for device in dict.fromkeys(tensor.device for tensor in found):
            here = [tensor.view(-1).view(torch.uint8) for tensor in found if tensor.device == device and tensor.numel()]
            if here:
                flat = torch.cat(here)
                dist.broadcast(flat, source)
                for tensor, received in zip(here, torch.split(flat, [one.numel() for one in here]), strict=True):
                    tensor.copy_(received)
        return found

    def _of_first_shard(self) -> list[Tensor]:
        own, adopted = self.now(), self._of_shards.get(FIRST)
        if adopted is None:
            return own
        # Changes made by hooks are this rank's own, as hooks are not called for an adopted shard's batches.
        both = zip(own, adopted, self._start, strict=True)
        return [mine if torch.equal(one, start) else one for mine, one, start in both]


def _changing(module: nn.Module) -> list[str]:
    """Names of a module's own buffers that a forward pass may change."""
    own = module.named_buffers(recurse=False)
    return [name for name, buffer in own if buffer.numel() <= LARGEST and not repeats(buffer)]
