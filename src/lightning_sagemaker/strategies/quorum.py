# SPDX-License-Identifier: Apache-2.0
"""A strategy whose ranks are those of the current quorum, for the Trainer and for Fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from lightning_sagemaker._lightning import rank_zero_info, rank_zero_only
from lightning_sagemaker.environment import SageMakerEnvironment
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.recovery import on_gpu
from lightning_sagemaker.recovery.calling_code import is_read_by_script
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.job_rank import JobRank, job_rank
from lightning_sagemaker.recovery.rank_loss import restart_after_losses
from lightning_sagemaker.recovery.supervised import is_supervised
from lightning_sagemaker.strategies.host import Host

if TYPE_CHECKING:
    from lightning_sagemaker._lightning import ClusterEnvironment
    from lightning_sagemaker._types import StateDict
    from lightning_sagemaker.recovery.replicas import Replicas
    from lightning_sagemaker.recovery.wire import Reply


class QuorumEnvironment(SageMakerEnvironment):
    """Cluster environment with the ranks of the current quorum; the job's ranks are those of the start."""

    def __init__(self, job: SageMakerJob, rank: JobRank) -> None:
        super().__init__(job)
        self._rank = rank
        self.update()

    def update(self) -> None:
        """Update the ranks to those of the current quorum."""
        order = self._rank.order
        self._global_rank, self._world_size = order.index(self._rank.number), len(order)
        if self._rank.joins:  # until it has joined, it must not write files as rank zero
            self._global_rank = max(1, self._rank.number)
        rank_zero_only.rank = self._global_rank

    def world_size(self) -> int:
        """Number of ranks; for a replacement that is to join, that at the start, as a script may divide batches by it."""
        if self._rank.joins and is_read_by_script("world_size"):
            return self._rank.early.world_size
        return super().world_size()


class JoinsQuorum(Host):
    """Mixin before a strategy: this process joins the quorum once, and each quorum has a default group of its own.

    Args:
        job: The job; read from the process's environment if None.
        **kwargs: Arguments of the strategy.

    Raises:
        RecoveryError: If no supervisor started this process.

    Attributes:
        rank: This process as a rank of the job; None until it has joined.
        is_asked: Whether the script has set ``recovery="in_job"``; otherwise the job recovers because it is supervised, if
            it can.

    """

    job: SageMakerJob
    cluster_environment: ClusterEnvironment | None
    recovers = True
    is_asked = True

    def __init__(self, *args: object, job: SageMakerJob | None = None, **kwargs: object) -> None:
        super().__init__(*args, job=job, **kwargs)
        if not is_supervised():
            raise RecoveryError(
                "recovery='in_job' was set, but no supervisor started this process. HINT: start the script with"
                " 'lightning-sagemaker supervise --processes N SCRIPT' on each host."
            )
        self.rank: JobRank | None = None

    @property
    def shards(self) -> int:
        """Number of shards of the data, which is the number of ranks that the job was started with."""
        return self.job.world_size or 1

    @property
    def distributed_sampler_kwargs(self) -> StateDict:
        """Arguments of the ``DistributedSampler``, for the ranks that the job was started with."""
        return {"num_replicas": self.shards, "rank": self.job.global_rank or 0}

    def _get_process_group_backend(self) -> str:
        """The backend that was set; otherwise gloo, with nccl for tensors on a GPU."""
        default = "gloo" if self.root_device.type == "cpu" else "cpu:gloo,cuda:nccl"
        return on_gpu.watched(self._process_group_backend or default)

    def join_quorum(self, replicas: Replicas | None = None) -> JobRank:
        """Wait for the other ranks, and create the process groups. Collective, except in a replacement.

        Args:
            replicas: Replicas of the model, if each is sharded across several ranks.

        """
        backend = self._get_process_group_backend()
        rank = self.rank = job_rank(self.job.global_rank or 0, backend, replicas)
        restart_after_losses(rank)
        self.cluster_environment = QuorumEnvironment(self.job, rank)
        rank_zero_info(
            f"Recovery in the job: {self.shards} ranks, by {backend}. SMDDP is not used: its groups cannot be recreated in"
            " a process."
        )
        return rank

    def form(self, reply: Reply) -> None:
        """Create the default group of a quorum, and use its ranks. Collective over the quorum."""
        assert self.rank is not None
        assert isinstance(self.cluster_environment, QuorumEnvironment)
        self.rank.form(reply)
        self.cluster_environment.update()


def broadcast_state(module: nn.Module) -> None:
    """Broadcast rank zero's weights and buffers, in place of DDP's wrapper, which is not used. Collective."""
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if isinstance(tensor, torch.Tensor):
                dist.broadcast(tensor, 0)
