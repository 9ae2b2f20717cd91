# SPDX-License-Identifier: Apache-2.0
"""``model.join()``: replicas with fewer batches than others take part in the others' reductions until all have finished.

As ``DistributedDataParallel.join`` does, which AWS's library uses: the gradients of a replica that has finished count as
zero, and in the end all replicas have the weights of one that finished last.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lightning_sagemaker.collectives.devices import broadcast
from lightning_sagemaker.parallel import gradients
from lightning_sagemaker.parallel.degrees import PipelineError
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state

if TYPE_CHECKING:
    from types import TracebackType

    from lightning_sagemaker.smdistributed.modelparallel.torch.model import DistributedModel


_STEPS, _PASSES = "in @smp.step", "outside of steps"


class UnevenBatches:
    """Context in which the replicas of a model may make different numbers of steps.

    Args:
        model: The distributed model.
        divides_by_all: Divide the sum of gradients by the number of all replicas, not of those that have not finished.
        throws: Raise on all replicas as soon as one has finished, instead of continuing.

    """

    def __init__(self, model: DistributedModel, divides_by_all: bool, throws: bool) -> None:
        self._model, self._divides_by_all, self._throws = model, divides_by_all, throws
        self._group = state.groups.groups["RDP"]
        self._kind: str | None = None
        self._of_torch, self._has_entered = ExitStack(), False

    def __enter__(self) -> UnevenBatches:
        self._model.uneven = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model.uneven = None
        if error is not None:
            self._of_torch.pop_all()  # the others are not waited for
            return
        self._agree(None)
        if self._kind == _STEPS:
            self._follow()
        if self._kind == _PASSES:
            self._enter_of_torch()
        self._of_torch.close()

    def begin_pass(self) -> None:
        """Before a forward pass outside of steps: torch's wrapper does the rest."""
        self._agree(_PASSES)
        self._enter_of_torch()

    def begin_partition(self, is_in_step: bool) -> None:
        """Before the model is partitioned, which all replicas do together."""
        self._agree(_STEPS if is_in_step else _PASSES)

    def begin_reduction(self) -> float:
        """Before the gradients of a step are averaged; returns by what the average is to be multiplied."""
        self._agree(_STEPS)
        size = dist.get_world_size(self._group)
        active = self._count(True)
        if self._throws and active < size:
            raise RuntimeError(_finished(size - active, size))
        return 1.0 if self._divides_by_all else size / active

    def _agree(self, own: str | None) -> None:
        """Once, at the first pass or step: what the replicas' passes are. One without batches learns it in the end."""
        if self._kind is not None:
            if own not in (None, self._kind):
                raise PipelineError(
                    f"a pass was made {own} in model.join(), after one {self._kind}. HINT: keep to one of them."
                )
            return
        kinds: list[str | None] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(kinds, own, group=state.groups.cpu_groups["RDP"])
        found = {kind for kind in kinds if kind is not None}
        if len(found) > 1:
            raise PipelineError(
                f"replicas made passes {' and '.join(sorted(found))} in model.join(). HINT: keep to one of them."
            )
        self._kind = next(iter(found), "")
        if self._kind and not self._model.partitioned and None in kinds:
            raise PipelineError(
                f"{kinds.count(None)} of {len(kinds)} replicas have no batch in model.join(), but all of them partition the"
                " model, in the first step. HINT: give each at least one batch."
            )

    def _enter_of_torch(self) -> None:
        if not self._has_entered:
            self._of_torch.enter_context(self._model.join_passes(self._divides_by_all, self._throws))
            self._has_entered = True

    def _count(self, is_active: bool) -> int:
        """Number of replicas that make a step now. Collective over the replicas."""
        flag = torch.tensor(int(is_active), device=state.device)
        dist.all_reduce(flag, group=self._group)
        return int(flag)

    def _follow(self) -> None:
        """Take part in the reductions of the others, until all have finished."""
        size, is_last = dist.get_world_size(self._group), True
        while active := self._count(False):
            if self._throws:
                raise RuntimeError(_finished(size - active, size))
            is_last = False
            kept = gradients.swap_gradients(self._model.own)
            gradients.average(self._model.own, self._group)
            gradients.swap_gradients(self._model.own, kept)
        source = torch.tensor(dist.get_rank() if is_last else -1, device=state.device)
        dist.all_reduce(source, dist.ReduceOp.MAX, self._group)
        for tensor in [*self._model.own, *self._model.module.buffers()]:
            broadcast(tensor.data, int(source), self._group)


def _finished(count: int, size: int) -> str:
    return (
        f"{count} of {size} replicas have no more batches (model.join(throw_on_early_termination=True)). HINT: give all of"
        " them as many batches, or leave the option out."
    )
