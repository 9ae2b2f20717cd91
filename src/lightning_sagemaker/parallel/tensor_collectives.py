# SPDX-License-Identifier: Apache-2.0
"""Collectives of a tensor parallel group that gradients pass through."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor


def copied(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """``x``; the gradients of all processes are summed."""
    return cast("Tensor", _Copied.apply(x, group))  # type: ignore[no-untyped-call]


def summed(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over all processes; the gradient is passed through."""
    return cast("Tensor", _Summed.apply(part, group))  # type: ignore[no-untyped-call]


def sliced(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This process's slice of the last dimension; the gradients are gathered."""
    return cast("Tensor", _Sliced.apply(x, group))  # type: ignore[no-untyped-call]


def joined(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Gather along the last dimension; the gradient is sliced."""
    return cast("Tensor", _Joined.apply(part, group))  # type: ignore[no-untyped-call]


def own_columns(rows: Tensor, group: dist.ProcessGroup, parts: int) -> Tensor:
    """This process's slice of each of ``parts`` equal parts of a matrix's columns, in exchange for its rows."""
    return cast("Tensor", _OwnColumns.apply(rows, group, parts))  # type: ignore[no-untyped-call]


class CopiedOnce:
    """Query, key and value are computed from one tensor: its gradient is summed over the group once, not three times."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._last: tuple[Callable[[], Tensor | None], Callable[[], Tensor | None]] = (lambda: None, lambda: None)

    def __call__(self, x: Tensor) -> Tensor:
        """``x``, whose gradients from all layers that it is passed to are summed together."""
        if not x.requires_grad:
            return x
        last, copy = self._last[0](), self._last[1]()
        if last is x and copy is not None:
            return copy
        made = copied(x, self._group)
        self._last = (weakref.ref(x), weakref.ref(made))
        return made


class _Context(Protocol):
    """The autograd context."""

    group: dist.ProcessGroup


class _PackedContext(_Context, Protocol):
    parts: int


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Sliced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _own_part(x, group)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        return _join_parts(gradient, ctx.group), None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _join_parts(part, group)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        return _own_part(gradient, ctx.group), None


class _OwnColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _PackedContext, rows: Tensor, group: dist.ProcessGroup, parts: int) -> Tensor:
        ctx.group, ctx.parts = group, parts
        size = dist.get_world_size(group)
        return _exchanged(rows.view(len(rows), parts, size, -1).permute(2, 0, 1, 3), group).view(size * len(rows), -1)

    @staticmethod
    def backward(ctx: _PackedContext, gradient: Tensor) -> tuple[Tensor, None, None]:
        size = dist.get_world_size(ctx.group)
        rows = len(gradient) // size
        columns = _exchanged(gradient.reshape(size, rows, ctx.parts, -1), ctx.group)
        return columns.permute(1, 2, 0, 3).reshape(rows, -1), None, None


def _exchanged(blocks: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Block *i* of each process, in the order of the processes, on process *i*."""
    blocks = blocks.contiguous()
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks, group=group)
    return received


def _own_part(whole: Tensor, group: dist.ProcessGroup) -> Tensor:
    return whole.chunk(dist.get_world_size(group), -1)[dist.get_rank(group)].contiguous()


def _join_parts(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    part = part.contiguous()
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part, group)
    return torch.cat(parts, -1)
