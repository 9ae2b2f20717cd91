# SPDX-License-Identifier: Apache-2.0
"""The rank of this process for Lightning's rank-zero logging, before there is a Trainer."""

from __future__ import annotations

from lightning_sagemaker.job import SageMakerJob, SageMakerJobError


def announce_rank() -> None:
    """Tell Lightning's rank-zero logging which rank this is, before any Trainer exists.

    Under mpirun none of the variables that Lightning looks at is set, and every rank would log as rank zero.
    """
    from lightning_sagemaker._lightning import rank_zero_only

    try:
        job = SageMakerJob.from_environment()
    except SageMakerJobError:
        return  # the Trainer says what is wrong; an import must not fail for it
    if job.global_rank is not None:
        rank_zero_only.rank = job.global_rank
    elif job.node_rank > 0:  # Lightning starts the processes; until then only the first host may speak
        rank_zero_only.rank = job.node_rank


def is_rank_zero() -> bool:
    """Whether this process is the one that logs and writes for all, before there is a Trainer, too."""
    from lightning_sagemaker._lightning import rank_zero_only

    return int(rank_zero_only.rank) == 0
