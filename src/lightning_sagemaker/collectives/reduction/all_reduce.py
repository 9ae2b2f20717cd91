# SPDX-License-Identifier: Apache-2.0
"""A process group's all-reduce, replaced by another reduction if two variables are set: for scripts without a strategy."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_sagemaker.collectives.agreement import of_all
from lightning_sagemaker.collectives.reduction.plan import FLAT, REDUCTIONS, WIRE
from lightning_sagemaker.job import SageMakerJob, SageMakerJobError

if TYPE_CHECKING:
    from lightning_sagemaker.collectives.reduction.hook import Reducer

REDUCTION, COMPRESSION = "LIGHTNING_SAGEMAKER_REDUCTION", "LIGHTNING_SAGEMAKER_COMPRESSION"
"""The strategies' ``gradient_reduction`` and ``gradient_compression``, without PowerSGD, which needs DDP's buckets."""
_LEAST = 64 * 2**10
"""Minimum bytes of a tensor that is reduced this way; smaller ones are bound by latency."""


class PlannedAllReduce:
    """Sums large floating-point tensors over all processes.

    Process groups are created, and a plan is chosen, for the first tensor, whose size is the same on all ranks.

    Args:
        reduction: ``flat``, ``hierarchical`` or ``auto``.
        compression: ``bf16``, ``fp16`` or None.
        timeout: Time limit of a collective.

    """

    def __init__(self, reduction: str, compression: str | None, timeout: timedelta) -> None:
        self._reduction, self._compression, self._timeout = reduction, compression, timeout
        self._reducer: Reducer | None = None
        self._has_chosen = self._is_choosing = False

    @classmethod
    def from_environment(cls, timeout: timedelta) -> PlannedAllReduce | None:
        """Read the process's variables; None if they leave the group's own all-reduce in use.

        Args:
            timeout: Time limit of a collective.

        Raises:
            SageMakerJobError: If a variable has an unknown value.

        """
        reduction = _one_of(REDUCTION, REDUCTIONS) or FLAT
        compression = _one_of(COMPRESSION, tuple(WIRE))
        return None if (reduction, compression) == (FLAT, None) else cls(reduction, compression, timeout)

    def supports(self, tensor: Tensor) -> bool:
        """Whether :meth:`start` supports a tensor. The first call with a large tensor is collective."""
        if self._is_choosing or not tensor.is_floating_point() or not tensor.is_contiguous() or tensor.nbytes < _LEAST:
            return False
        if not self._has_chosen:
            self._is_choosing = True
            self._choose(tensor)
            self._is_choosing, self._has_chosen = False, True
        return self._reducer is not None

    def start(self, tensor: Tensor) -> torch.futures.Future[Tensor]:
        """Start to replace a tensor by its sum over all processes."""
        assert self._reducer is not None
        return self._reducer.reduce(tensor.view(-1))

    def _choose(self, tensor: Tensor) -> None:
        from lightning_sagemaker._lightning import rank_zero_info
        from lightning_sagemaker.collectives.reduction.engine import Engine
        from lightning_sagemaker.collectives.reduction.hook import Reducer
        from lightning_sagemaker.collectives.reduction.options import ReductionOptions
        from lightning_sagemaker.collectives.reduction.topology import Groups, Topology

        hosts = of_all(SageMakerJob.from_environment().node_rank, dist.get_world_size())
        groups = Groups(Topology.of(hosts), "nccl" if tensor.is_cuda else "gloo", self._timeout)
        engine = Engine(ReductionOptions(self._reduction, self._compression), groups, tensor.device, tensor.nbytes)
        if not engine.plan.is_plain:
            self._reducer = Reducer(engine.plan, groups, tensor.device, divisor=1)
        variables = f"{REDUCTION}={self._reduction}" + (
            f", {COMPRESSION}={self._compression}" if self._compression else ""
        )
        rank_zero_info(f"{variables}: sums over all processes are {engine.plan.description}. {engine.reason}")


def _one_of(name: str, known: tuple[str, ...]) -> str | None:
    value = os.environ.get(name)
    if value and value not in known:
        raise SageMakerJobError(f"{name}={value!r} was set. HINT: set one of {', '.join(known)}, or unset it.")
    return value or None
