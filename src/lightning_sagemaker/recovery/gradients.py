# SPDX-License-Identifier: Apache-2.0
"""Averages gradients over the shards of a step, with a process group that may fail.

There is no DDP wrapper: its reducer is unusable after a collective that failed within a backward pass. Gradients are
divided first and then summed, as in DDP, so that with two processes the results are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.tensor import DTensor

from lightning_sagemaker._compat.dtensor import local_of, with_local

_BUCKET = 25 * 1024 * 1024
"""Bytes of a bucket, as in DDP (``bucket_cap_mb``)."""
NONE: Mapping[nn.Parameter, Tensor] = {}
"""No gradients of adopted shards."""


class Bucket:
    """Gradients that are reduced in one tensor, followed by the number of ranks that have each gradient.

    Each step uses a new tensor, of which the means are views: a script may keep a gradient, and a group that has
    failed may still write to its tensor.

    Args:
        parameters: Parameters of the gradients, of one dtype and device.
        shards: Number of shards of the step.
        group: Process group of the ranks that hold the same parameters; None for the default group.

    """

    def __init__(self, parameters: Sequence[nn.Parameter], shards: int, group: dist.ProcessGroup | None = None) -> None:
        self.parameters, self._scale, self._group = parameters, 1.0 / shards, group
        self._ones = torch.ones(len(parameters), dtype=parameters[0].dtype, device=parameters[0].device)
        self._flat: Tensor | None = None
        self._work: dist.Work | None = None
        self._has_all = False

    @property
    def is_started(self) -> bool:
        """Whether the reduction has started."""
        return self._work is not None

    def begin(self) -> None:
        """Reset for the next step."""
        self._flat = self._work = None

    def start(self, adopted: Mapping[nn.Parameter, Tensor] = NONE) -> None:
        """Copy the gradients into the tensor and start its all-reduce. Collective.

        Args:
            adopted: Gradients of adopted shards, summed, which are added.

        """
        found = [None if one.grad is None else local_of(one.grad) for one in self.parameters]
        if adopted:
            found = [_sum(own, adopted.get(one)) for own, one in zip(found, self.parameters, strict=True)]
        there = [one is not None for one in found]
        self._has_all = all(there)
        tensors = [
            torch.zeros_like(local_of(one)) if own is None else own
            for own, one in zip(found, self.parameters, strict=True)
        ]
        counts = self._ones if self._has_all else torch.tensor(there).to(self._ones)
        self._flat = _flatten_dense_tensors([*tensors, counts])  # type: ignore[no-untyped-call]
        self._flat.mul_(self._scale)
        self._work = dist.all_reduce(self._flat, group=self._group, async_op=True)

    def wait(self) -> None:
        """Wait for the sum."""
        assert self._work is not None
        self._work.wait()

    def put_back(self) -> None:
        """Replace each gradient by its mean."""
        assert self._flat is not None
        like = [*map(local_of, self.parameters), self._ones]
        *means, counts = _unflatten_dense_tensors(self._flat, like)  # type: ignore[no-untyped-call]
        has = [True] * len(means) if self._has_all else counts.tolist()
        for parameter, mean, count in zip(self.parameters, means, has, strict=True):
            if count and isinstance(parameter, DTensor):
                parameter.grad = with_local(parameter, mean)
            elif count:
                parameter.grad = mean if parameter.is_contiguous() else torch.empty_like(parameter).copy_(mean)
        self._flat = None


def _sum(own: Tensor | None, other: Tensor | None) -> Tensor | None:
    found = None if other is None else local_of(other)
    return found if own is None else own if found is None else own + found


def average(parameters: Sequence[nn.Parameter], shards: int) -> None:
    """Replace each gradient by the mean over all shards of a step. Collective.

    Args:
        parameters: Parameters that may have gradients, in the same order on all ranks. A gradient that is None here
            counts as zero if another rank has one, and stays None if no rank has one.
        shards: Number of shards of the step; each rank holds the sum over its own.

    Raises:
        RuntimeError: If the group has lost a rank; the gradients are then invalid.

    """
    for bucket in means(parameters, shards):
        bucket.put_back()


def means(parameters: Sequence[nn.Parameter], shards: int) -> list[Bucket]:
    """The means that :func:`average` would assign; the gradients are not changed. Collective.

    Args:
        parameters: As in :func:`average`.
        shards: As in :func:`average`.

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


def buckets_of(parameters: Sequence[nn.Parameter], shards: int, group: dist.ProcessGroup | None = None) -> list[Bucket]:
    """Buckets in the order in which ranks reduce them: that of a backward pass, from the last parameter to the first."""
    return [Bucket(parts, shards, group) for parts in _divided(parameters)]


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
