# SPDX-License-Identifier: Apache-2.0
"""Errors for settings of a Trainer or of Fabric that contradict the job."""

from __future__ import annotations

from lightning_sagemaker.job.job import SageMakerJob
from lightning_sagemaker.job.types import SageMakerJobError


def refuse_num_nodes(job: SageMakerJob, num_nodes: int) -> SageMakerJobError:
    """The error for a ``num_nodes`` other than the job's number of hosts."""
    return SageMakerJobError(
        f"num_nodes={num_nodes} was set, but this job has {job.num_nodes} host(s): {', '.join(job.hosts)}. HINT: leave"
        f" num_nodes out, or set num_nodes={job.num_nodes}."
    )


def refuse_devices(launched: int | None, devices: int) -> SageMakerJobError:
    """The error for ``devices`` other than the number of processes that were launched on a host."""
    return SageMakerJobError(
        f"devices={devices} was set, but the launcher started {launched} process(es) on this host. HINT: leave devices out,"
        f" or set devices={launched}."
    )
