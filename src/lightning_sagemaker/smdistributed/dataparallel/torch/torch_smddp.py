# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.dataparallel.torch.torch_smddp``: importing it registers the backend ``smddp``.

It also sets the environment variables that ``init_process_group("smddp")`` needs where mpirun did not.
"""

from __future__ import annotations

import os

import torch.distributed as dist

from lightning_sagemaker.job import Launcher, SageMakerJob
from lightning_sagemaker.smdistributed.dataparallel.torch.process_group import create


def _export_ranks(job: SageMakerJob) -> None:
    """Set the variables that AWS's launcher ``smddprun`` sets, for a plain mpirun; nothing is overwritten."""
    if job.launcher not in (Launcher.MPI, Launcher.SMDDPRUN):
        return
    for name, value in (
        ("RANK", job.global_rank),
        ("LOCAL_RANK", job.local_rank),
        ("WORLD_SIZE", job.world_size),
        ("SMDATAPARALLEL_LOCAL_RANK", job.local_rank),
        ("MASTER_ADDR", job.main_address),
        ("MASTER_PORT", job.main_port),
    ):
        if value != "":  # mpirun on several hosts: the caller of init_process_group has to know the first
            os.environ.setdefault(name, str(value))


if "SMDDP" not in dist.Backend._plugins:
    dist.Backend.register_backend("smddp", create, extended_api=True, devices=["cpu", "cuda"])
_export_ranks(SageMakerJob.from_environment())
