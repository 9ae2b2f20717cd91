# SPDX-License-Identifier: Apache-2.0
"""Joins the batches of a tensor parallel group: each rank computes with the samples of all, and gets its rows back.

With ``prescaled_batch`` false, AWS's default, every rank of the group reads its own samples.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_sagemaker.parallel.containers import map_tensors
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state


class JoinedBatches:
    """Microbatches of all ranks of ``TP_GROUP``, each joined along the axis of its samples. Collective over the group.

    Args:
        microbatches: Microbatches of this rank: name -> argument of the step.
        whole: Names of arguments that are the same on all ranks.
        axes: Name -> axis of the samples, if not the first.

    Attributes:
        microbatches: The joined microbatches.

    Raises:
        ParallelConfigError: If shapes do not allow joining them.

    """

    def __init__(
        self, microbatches: Sequence[Mapping[str, object]], whole: Collection[str], axes: Mapping[str, int]
    ) -> None:
        own = [_cut_tensors(one, whole, axes) for one in microbatches]
        found: list[list[list[tuple[Tensor, int]]]] = [[]] * len(state.groups.ranks["TP"])
        dist.all_gather_object(found, own, group=state.groups.cpu_groups["TP"])
        self._place = state.groups.at.tensor
        self._rows = [[_rows(rank[number]) for rank in found] for number in range(len(own))]
        self.microbatches: list[Mapping[str, object]] = []
        for number, one in enumerate(microbatches):
            joined = iter([_join(column) for column in zip(*(rank[number] for rank in found), strict=False)])
            take = functools.partial(_next, joined)
            self.microbatches.append(
                {name: value if name in whole else map_tensors(value, take) for name, value in one.items()}
            )

    def own_rows(self, results: Sequence[object]) -> list[object]:
        """The rows of this rank's samples in the step's result for each joined microbatch; other values unchanged.

        Backward passes from them sum the gradients of all ranks' rows, each of which counts as one of the ranks' losses.
        """
        pairs = zip(results, self._rows, strict=True)
        return [map_tensors(result, functools.partial(self._own, rows)) for result, rows in pairs]

    def _own(self, rows: list[int], tensor: Tensor) -> Tensor:
        if not tensor.dim() or tensor.shape[0] != sum(rows):
            return tensor
        own: Tensor = _OwnRows.apply(tensor, sum(rows[: self._place]), rows[self._place])  # type: ignore[no-untyped-call]
        return own


class _Context(Protocol):
    """The autograd context."""

    begin: int
    count: int
    shape: torch.Size


class _OwnRows(torch.autograd.Function):
    """Rows of the joined samples; the gradients of all ranks' rows are gathered, and divided by the number of ranks."""

    @staticmethod
    def forward(ctx: _Context, joined: Tensor, begin: int, count: int) -> Tensor:
        ctx.begin, ctx.count, ctx.shape = begin, count, joined.shape
        return joined.narrow(0, begin, count).clone()

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None, None]:
        group = state.groups.groups["TP"]
        whole = gradient.new_zeros(ctx.shape)
        whole.narrow(0, ctx.begin, ctx.count).copy_(gradient)
        dist.all_reduce(whole, group=group)
        return whole / dist.get_world_size(group), None, None


def is_joined() -> bool:
    """Whether ranks of a tensor parallel group read different samples, as they do by default."""
    return state.cfg is not None and state.cfg.degrees.tensor > 1 and not state.cfg.prescaled_batch


def _next(tensors: Iterator[Tensor], _: Tensor) -> Tensor:
    return next(tensors)


def _cut_tensors(
    microbatch: Mapping[str, object], whole: Collection[str], axes: Mapping[str, int]
) -> list[tuple[Tensor, int]]:
    """The tensors that differ between ranks, on the CPU, with the axis of their samples."""
    found: list[tuple[Tensor, int]] = []
    for name, value in microbatch.items():
        if name not in whole:
            tensors: list[Tensor] = []
            map_tensors(value, tensors.append)
            found += [(tensor.detach().cpu(), axes.get(name, 0)) for tensor in tensors]
    return found


def _rows(tensors: Sequence[tuple[Tensor, int]]) -> int:
    return next((tensor.shape[axis] for tensor, axis in tensors if tensor.dim() > axis), 0)


def _join(column: Sequence[tuple[Tensor, int]]) -> Tensor:
    """Join the same argument of all ranks."""
    first, axis = column[0]
    if first.dim() <= axis:
        return first.to(state.device)  # a number holds for all samples
    tensors = [tensor for tensor, _ in column]
    try:
        return torch.cat(tensors, axis).to(state.device)
    except RuntimeError as error:
        raise ParallelConfigError(
            f"ranks of a tensor parallel group have batches of shapes {[list(tensor.shape) for tensor in tensors]}, which"
            " cannot be joined. HINT: pad to the same length, or set prescaled_batch to true and give all the same samples."
        ) from error
