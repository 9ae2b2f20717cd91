# SPDX-License-Identifier: Apache-2.0
"""Ranks that change while a job recovers, for the Trainer's and Fabric's strategies."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from lightning_sagemaker._lightning import rank_zero_info, rank_zero_only
from lightning_sagemaker.environment import SageMakerEnvironment
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.recovery import on_gpu
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.early import is_read_by_script
from lightning_sagemaker.recovery.job_rank import JobRank
from lightning_sagemaker.recovery.supervised import is_supervised


def check_supervised() -> None:
    """Raise if no supervisor started this process.

    Raises:
        RecoveryError: If no supervisor started this process.

    """
    if not is_supervised():
        raise RecoveryError(
            "recovery='in_job' was set, but no supervisor started this process. HINT: start the script with"
            " 'lightning-sagemaker supervise --processes N SCRIPT' on each host."
        )


def group_backend(given: str | None, device: torch.device) -> str:
    """Backend of the groups of a job that recovers: ``given``, or gloo, with nccl for tensors on a GPU."""
    return on_gpu.watched(given or ("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"))


def log_recovery(ranks: int, backend: str) -> None:
    """Log once that the job recovers, and that SMDDP is not used."""
    rank_zero_info(
        f"Recovery in the job: {ranks} ranks, by {backend}. SMDDP is not used: its groups cannot be recreated in a process."
    )


def broadcast_state(module: nn.Module) -> None:
    """Broadcast rank zero's weights and buffers, in place of DDP's wrapper, which is not used. Collective."""
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if isinstance(tensor, torch.Tensor):
                dist.broadcast(tensor, 0)


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
