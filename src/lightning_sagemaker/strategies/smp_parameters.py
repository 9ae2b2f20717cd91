# SPDX-License-Identifier: Apache-2.0
"""Reads the parallel layout of ``strategy="smp"`` from the job or the strategy's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees
from lightning_sagemaker.strategies.host import Host
from lightning_sagemaker.strategies.keywords import check_keywords

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from lightning_sagemaker._types import StateDict


class ParallelLayout(Host):
    """Mixin before :class:`~lightning_sagemaker.strategies.job_aware.JobAware`: a strategy with a parallel layout.

    Args:
        parameters: SageMaker's ``mp_parameters``. Default: those of the job.
        degrees: The same as an object; overrides ``parameters``.
        job: The job; read from the process's environment if None.
        activation_checkpointing: Whether blocks save only their inputs, and are recomputed in the backward pass.

    Raises:
        ParallelConfigError: If the parameters contradict each other, or there are none.
        TypeError: If an argument is unknown, so that a misspelt ``parameters`` is not ignored.

    """

    def __init__(
        self,
        *args: object,
        parameters: Mapping[str, object] | None = None,
        degrees: ParallelDegrees | None = None,
        job: SageMakerJob | None = None,
        activation_checkpointing: bool = False,
        **kwargs: Any,
    ) -> None:
        check_keywords(kwargs, type(self))
        job = SageMakerJob.from_environment() if job is None else job
        self.activation_checkpointing = activation_checkpointing
        self.degrees, self._notes = degrees_of(job, parameters, degrees)
        if self.degrees.pipeline == 1 and self.degrees.microbatches > 1:
            self._notes.append("mp_parameters: microbatches has no effect without partitions.")
        super().__init__(*args, job=job, **kwargs)

    @property
    def distributed_sampler_kwargs(self) -> StateDict:
        """All processes of a model replica read the same samples."""
        replicas = self.degrees.replicas(self.world_size)
        return {"num_replicas": replicas, "rank": self.degrees.coordinates(self.global_rank, self.world_size).replica}

    def sync_seed(self, group: ProcessGroup | None) -> None:
        """Broadcast the seed in a tensor parallel group, as dropout on replicated activations must be equal. Collective.

        Args:
            group: Process group of the tensor parallel processes.

        """
        seeds: list[int] = [0] * dist.get_world_size(group)
        dist.all_gather_object(seeds, torch.initial_seed(), group=group)
        if len(set(seeds)) > 1:
            torch.manual_seed(seeds[0])

    def log_ignored_parameters(self) -> None:
        """Log on rank zero which parameters have no effect."""
        for note in self._notes:
            rank_zero_info(note)


def degrees_of(
    job: SageMakerJob, parameters: Mapping[str, object] | None, degrees: ParallelDegrees | None
) -> tuple[ParallelDegrees, list[str]]:
    """The layout of ``strategy="smp"``, and a log line for each parameter without effect.

    Args:
        job: The job.
        parameters: ``mp_parameters`` from Python; those of the job if None.
        degrees: The parallel layout; overrides both.

    Raises:
        ParallelConfigError: If there are none, or this version does not support them.

    """
    given = job.model_parallel_parameters if parameters is None else parameters
    if degrees is None and not given:
        raise ParallelConfigError(
            "strategy='smp' was chosen, but neither the job nor the strategy says how to partition the model. HINT: set"
            " mp_parameters in the job, or pass SMPStrategy(parameters={'partitions': 2, 'microbatches': 4, 'ddp': True})."
        )
    found, notes = ParallelDegrees.from_parameters(given) if degrees is None else (degrees, [])
    if found.pipeline > 1 and found.shard not in (0, 1):
        raise ParallelConfigError(
            f"partitions={found.pipeline} was set with a shard degree of {found.shard}, which cannot be combined: each"
            " microbatch would gather the parameters again. HINT: use partitions with tensor_parallel_degree, or a shard"
            " degree without partitions."
        )
    return found, notes


def refuse_partitions(degrees: ParallelDegrees, strategy: str, reason: str, instead: str) -> None:
    """Raise for pipeline stages in a strategy that does not support them.

    Args:
        degrees: The parallel layout.
        strategy: Name of the strategy.
        reason: Why the strategy has no pipeline stages.
        instead: Strategy to use instead.

    Raises:
        ParallelConfigError: If partitions are requested.

    """
    if degrees.pipeline > 1:
        raise ParallelConfigError(
            f"{strategy} was given partitions={degrees.pipeline}, but {reason}. HINT: use {instead}, or"
            " tensor_parallel_degree and a shard degree instead of partitions."
        )
