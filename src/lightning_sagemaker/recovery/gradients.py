# SPDX-License-Identifier: Apache-2.0
"""The mean of gradients over the shards of a step, with a group that may fail.

There is no DDP wrapper: its reducer is unusable after a collective that failed within a backward pass. Gradients are
divided first and then summed, as in DDP, so that with two processes the results are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn

_BUCKET = 25 * 1024 * 1024
"""Bytes that are reduced together, as in DDP (``bucket_cap_mb``)."""
Means = list[tuple[list[nn.Parameter], torch.Tensor]]
"""Parameters of each bucket, and the reduced bucket."""


def average(parameters: Sequence[nn.Parameter], shards: int) -> None:
    """Replace each gradient by the mean over all shards of a step. Collective.

    Args:
        parameters: Those that may have gradients, in the same order on all ranks. One whose gradient is None here
            counts as zero if another rank has one, and stays None if none has.
        shards: Number of shards of the step; each rank holds the sum over its own.

    Raises:
        RuntimeError: If the group has lost a rank; the gradients are then invalid.

    """
    with torch.no_grad():
        pending = [(bucket, *_start(bucket, shards)) for bucket in _buckets(parameters)]
        for bucket, flat, work in pending:
            work.wait()
            _put_back(bucket, flat)  # while later buckets are being reduced


def means(parameters: Sequence[nn.Parameter], shards: int) -> Means:
    """The means that :func:`average` puts in the place of the gradients, which stay as they are. Collective.

    Args:
        parameters: As of that.
        shards: Likewise.

    Raises:
        RuntimeError: If the group has lost a rank.

    """
    with torch.no_grad():
        pending = [(bucket, *_start(bucket, shards)) for bucket in _buckets(parameters)]
        for _, _, work in pending:
            work.wait()
    return [(bucket, flat) for bucket, flat, _ in pending]


def put_back(means: Means) -> None:
    """Replace each gradient by its mean."""
    with torch.no_grad():
        for bucket, flat in means:
            _put_back(bucket, flat)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters of one type and device, from the last to the first."""
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


def _start(bucket: list[nn.Parameter], shards: int) -> tuple[torch.Tensor, dist.Work]:
    """Start the sum of a bucket, followed by the number of ranks that have each gradient."""
    has = torch.tensor([parameter.grad is not None for parameter in bucket], dtype=bucket[0].dtype)
    flat = torch.empty(
        sum(parameter.numel() for parameter in bucket) + len(bucket), dtype=bucket[0].dtype, device=bucket[0].device
    )
    begin = 0
    for parameter in bucket:
        part = flat[begin : begin + parameter.numel()].view(parameter.shape)
        begin += parameter.numel()
        if parameter.grad is None:
            part.zero_()
        else:
            torch.mul(parameter.grad, 1.0 / shards, out=part)
    flat[begin:] = has
    work = dist.all_reduce(flat, async_op=True)
    assert work is not None
    return flat, work


def _put_back(bucket: list[nn.Parameter], flat: torch.Tensor) -> None:
    begin, counts = 0, flat[-len(bucket) :].tolist()
    for parameter, count in zip(bucket, counts, strict=True):
        part = flat[begin : begin + parameter.numel()].view(parameter.shape)
        begin += parameter.numel()
        if not count:
            continue
        if parameter.grad is None:
            parameter.grad = part.clone()
        else:
            parameter.grad.copy_(part)
