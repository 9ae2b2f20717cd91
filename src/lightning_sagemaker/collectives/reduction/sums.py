# SPDX-License-Identifier: Apache-2.0
"""A process group's own sums, reduced otherwise where two variables say so: for scripts that have no strategy."""

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
"""As the strategies' ``gradient_reduction`` and ``gradient_compression``, without PowerSGD, which needs a step's buckets."""
_LEAST = 64 * 2**10
"""Bytes of a tensor from which on its sum is reduced so; smaller ones wait for latency only."""


class Sums:
    """Sums of large floating-point tensors over all processes.

    Nothing is made before the first one, from whose size on all ranks come to the same.

    Args:
        reduction: ``flat``, ``hierarchical`` or ``auto``.
        compression: ``bf16``, ``fp16`` or None.
        timeout: How long a collective may take.

    """

    def __init__(self, reduction: str, compression: str | None, timeout: timedelta) -> None:
        self._reduction, self._compression, self._timeout = reduction, compression, timeout
        self._reducer: Reducer | None = None
        self._is_settled = self._is_settling = False

    @classmethod
    def from_environment(cls, timeout: timedelta) -> Sums | None:
        """As the process's variables say; None where the group's own sums are wanted.

        Args:
            timeout: How long a collective may take.

        Raises:
            SageMakerJobError: If a variable has another value than those of the table.

        """
        reduction = _one_of(REDUCTION, REDUCTIONS) or FLAT
        compression = _one_of(COMPRESSION, tuple(WIRE))
        return None if (reduction, compression) == (FLAT, None) else cls(reduction, compression, timeout)

    def takes(self, tensor: Tensor) -> bool:
        """Whether :meth:`begin` is to add a tensor up. Collective when it is asked for the first time."""
        if self._is_settling or not tensor.is_floating_point() or not tensor.is_contiguous() or tensor.nbytes < _LEAST:
            return False
        if not self._is_settled:
            self._is_settling = True
            self._settle(tensor)
            self._is_settling, self._is_settled = False, True
        return self._reducer is not None

    def begin(self, tensor: Tensor) -> torch.futures.Future[Tensor]:
        """Begin to replace a tensor by its sum over all processes."""
        assert self._reducer is not None
        return self._reducer.reduce(tensor.view(-1))

    def _settle(self, tensor: Tensor) -> None:
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
        asked = f"{REDUCTION}={self._reduction}" + (f", {COMPRESSION}={self._compression}" if self._compression else "")
        rank_zero_info(f"{asked}: sums over all processes are {engine.plan.words}. {engine.reason}")


def _one_of(name: str, known: tuple[str, ...]) -> str | None:
    value = os.environ.get(name)
    if value and value not in known:
        raise SageMakerJobError(f"{name}={value!r} was set. HINT: set one of {', '.join(known)}, or unset it.")
    return value or None
