# SPDX-License-Identifier: Apache-2.0
"""The mean of gradients over the shards of a step, with a group that may fail.

There is no DDP wrapper: its reducer is unusable after a collective that failed within a backward pass. Gradients are
divided first and then summed, as in DDP, so that with two processes the results are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

_BUCKET = 25 * 1024 * 1024
"""Bytes that are reduced together, as in DDP (``bucket_cap_mb``)."""
NONE: Mapping[nn.Parameter, Tensor] = {}
"""No gradients of adopted shards."""


class Bucket:
    """Gradients that are reduced together, followed by the number of ranks that have each of them.

    Args:
        parameters: Theirs, of one type and device.
        shards: Number of shards of the step.

    """

    def __init__(self, parameters: Sequence[nn.Parameter], shards: int) -> None:
        self.parameters, self._scale = parameters, 1.0 / shards
        sizes, like = [one.numel() for one in parameters], parameters[0]
        self._flat = torch.empty(sum(sizes) + len(sizes), dtype=like.dtype, device=like.device)
        self._values, self._counts = torch.split(self._flat, [sum(sizes), len(sizes)])
        parts = torch.split(self._values, sizes)
        self._parts = {one: part.view(one.shape) for one, part in zip(parameters, parts, strict=True)}
        self._work: dist.Work | None = None

    @property
    def is_started(self) -> bool:
        """Whether it is being reduced, or has been."""
        return self._work is not None

    def begin(self) -> None:
        """Another step."""
        self._work = None

    def start(self, adopted: Mapping[nn.Parameter, Tensor] = NONE) -> None:
        """Put the gradients in, and begin the sum over ranks. Collective.

        Args:
            adopted: Sums of gradients of shards that this rank has adopted, which are added.

        """
        own = [one for one in self.parameters if one.grad is not None]
        if own:  # foreach functions refuse empty lists
            torch._foreach_copy_([self._parts[one] for one in own], [one.grad for one in own])  # type: ignore[misc]
        has = {*own, *(one for one in self.parameters if one in adopted)}
        for parameter in self.parameters:
            part, other = self._parts[parameter], adopted.get(parameter)
            if parameter.grad is None:
                part.zero_() if other is None else part.copy_(other)
            elif other is not None:
                part.add_(other)
        if len(has) == len(self.parameters):
            self._counts.fill_(1)
        else:
            self._counts.copy_(torch.tensor([float(one in has) for one in self.parameters]))
        self._values.mul_(self._scale)
        self._work = dist.all_reduce(self._flat, async_op=True)

    def wait(self) -> None:
        """Wait for the sum."""
        assert self._work is not None
        self._work.wait()

    def put_back(self) -> None:
        """Replace each gradient by its mean."""
        with torch.no_grad():
            mine = [one for one in self.parameters if one.grad is not None]
            if mine:  # foreach functions refuse empty lists
                torch._foreach_copy_([one.grad for one in mine], [self._parts[one] for one in mine])  # type: ignore[misc]
            if len(mine) == len(self.parameters):
                return
            for parameter, count in zip(self.parameters, self._counts.tolist(), strict=True):
                if parameter.grad is None and count:
                    parameter.grad = self._parts[parameter].clone()


def average(parameters: Sequence[nn.Parameter], shards: int) -> None:
    """Replace each gradient by the mean over all shards of a step. Collective.

    Args:
        parameters: Those that may have gradients, in the same order on all ranks. One whose gradient is None here
            counts as zero if another rank has one, and stays None if none has.
        shards: Number of shards of the step; each rank holds the sum over its own.

    Raises:
        RuntimeError: If the group has lost a rank; the gradients are then invalid.

    """
    for bucket in means(parameters, shards):
        bucket.put_back()


def means(parameters: Sequence[nn.Parameter], shards: int) -> list[Bucket]:
    """The means that :func:`average` puts in the place of the gradients, which stay as they are. Collective.

    Args:
        parameters: As of that.
        shards: Likewise.

    Raises:
        RuntimeError: If the group has lost a rank.

    """
    found = buckets_of(parameters, shards)
    with torch.no_grad():
        for bucket in found:
            bucket.start()
        for bucket in found:
            bucket.wait()
    return found


def buckets_of(parameters: Sequence[nn.Parameter], shards: int) -> list[Bucket]:
    """Buckets in the order in which ranks reduce them: that of a backward pass, from the last parameter to the first."""
    return [Bucket(parts, shards) for parts in _divided(parameters)]


def _divided(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in reversed(parameters):
        fits = not bucket or (parameter.dtype, parameter.device) == (bucket[0].dtype, bucket[0].device)
        if bucket and (size >= _BUCKET or not fits):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel() * parameter.element_size()
    if bucket:
        yield bucket
