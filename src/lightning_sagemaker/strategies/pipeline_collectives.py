# SPDX-License-Identifier: Apache-2.0
"""Lightning's collectives under a pipeline: among all processes between steps, among the replicas within a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors
from typing_extensions import override

from lightning_sagemaker.parallel.degrees import ParallelDegrees
from lightning_sagemaker.parallel.groups import ParallelGroups

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx
    from torch.distributed import ProcessGroup

    from lightning_sagemaker._lightning import DDPStrategy as Host
else:
    Host = object

T = TypeVar("T")


class PipelineCollectives(Host):
    """Mixin of a pipeline's strategy: the collectives that a step, a hook or a callback calls.

    The code around the blocks runs on one stage, so no other stage of the replica joins a collective of that code: within
    a step they are among the processes that have this stage in each replica.
    """

    degrees: ParallelDegrees
    groups: ParallelGroups
    _groups: ParallelGroups | None
    _in_step = _is_traced = False

    @contextmanager
    def within_step(self, *, traced: bool = False) -> Iterator[None]:
        """Context in which the code of a step runs.

        Args:
            traced: Whether each process runs it for the shapes alone, without the others.

        """
        before = self._in_step, self._is_traced
        self._in_step, self._is_traced = True, traced
        try:
            yield
        finally:
            self._in_step, self._is_traced = before

    @override
    def all_gather(self, tensor: Tensor, group: ProcessGroup | None = None, sync_grads: bool = False) -> Tensor:
        """Gather from all processes, within a step from the replicas."""
        if not self._in_step or group not in (None, dist.group.WORLD):
            found: Tensor = super().all_gather(tensor, group, sync_grads)
            return found
        if self._is_traced:
            return torch.stack([tensor] * len(self.groups.ranks["RDP"]))
        with nullcontext() if sync_grads else torch.no_grad():
            found = _Gathered.apply(tensor, self.groups.groups["RDP"])  # type: ignore[no-untyped-call]
        return found

    @override
    def broadcast(self, obj: T, src: int = 0) -> T:
        """Broadcast to all processes, within a step to the replicas, of which ``src`` is then the index."""
        if not self._in_step:
            found: T = super().broadcast(obj, src)
            return found
        held = [obj]
        if not self._is_traced:
            dist.broadcast_object_list(held, self.groups.ranks["RDP"][src], group=self.groups.groups["RDP"])
        return held[0]

    @override
    def barrier(self, *args: object, **kwargs: object) -> None:
        """Wait for all processes, within a step for the replicas."""
        if self._in_step:
            self.reduce_boolean_decision(True)
        else:
            super().barrier(*args, **kwargs)

    @override
    def reduce(
        self, tensor: Tensor, group: ProcessGroup | None = None, reduce_op: dist.ReduceOp | str | None = "mean"
    ) -> Tensor:
        """Reduce over the replicas, as all stages of a replica have the same value."""
        if self._is_traced:
            return tensor
        group = self.groups.groups["RDP"] if group is None and self._groups is not None else group
        found: Tensor = super().reduce(tensor, group, reduce_op)
        return found

    @override
    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Reduce over all processes, within a step over the replicas."""
        if self._is_traced:
            return decision
        group = self.groups.groups["RDP"] if self._in_step else None
        votes = torch.tensor(int(decision), device=self.root_device)
        dist.all_reduce(votes, group=group)
        return int(votes) == dist.get_world_size(group) if all else bool(votes)

    def gather_metric(self, tensor: Tensor, group: ProcessGroup | None = None) -> list[Tensor]:
        """Gather a metric's state of all replicas, from their last stages, which run every step. Collective.

        Args:
            tensor: State of this process.
            group: Not used: the metric's, which is all processes.

        """
        replicas = self.groups.ranks["RDP"]
        if self._is_traced:
            return [tensor] * len(replicas)
        if self._in_step:
            found: list[Tensor] = gather_all_tensors(tensor, self.groups.groups["RDP"])
            return found
        found = gather_all_tensors(tensor)
        places = (self.degrees.coordinates(rank, self.world_size) for rank in range(self.world_size))
        last = self.degrees.pipeline - 1
        return [state for state, at in zip(found, places, strict=True) if at.pipeline == last and at.tensor == 0]


class _Gathered(torch.autograd.Function):
    """The tensors of a group's processes; that of torch (``distributed.nn``) has no backward for subgroups under gloo."""

    @staticmethod
    def forward(ctx: FunctionCtx, tensor: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group  # type: ignore[attr-defined]
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor.contiguous(), group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: FunctionCtx, gradients: Tensor) -> tuple[Tensor, None]:
        group: ProcessGroup = ctx.group  # type: ignore[attr-defined]
        total = gradients.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total[dist.get_rank(group)], None
