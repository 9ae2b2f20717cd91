# SPDX-License-Identifier: Apache-2.0
"""Joins the batches of a tensor parallel group: each rank computes with the samples of all, and gets its rows back.

With ``prescaled_batch`` false, AWS's default, every rank of the group reads its own samples.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence

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
        """The rows of this rank's samples in the step's result for each joined microbatch; other values unchanged."""
        pairs = zip(results, self._rows, strict=True)
        return [map_tensors(result, functools.partial(self._own, rows)) for result, rows in pairs]

    def _own(self, rows: list[int], tensor: Tensor) -> Tensor:
        if not tensor.dim() or tensor.shape[0] != sum(rows):
            return tensor
        return tensor.narrow(0, sum(rows[: self._place]), rows[self._place])


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
