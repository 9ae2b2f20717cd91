# SPDX-License-Identifier: Apache-2.0
"""What ``strategy="sagemaker"`` stands for, for the Trainer and Fabric alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.job import SageMakerJob, SageMakerJobError
from lightning_sagemaker.selection import select_strategy

T = TypeVar("T")


def build_for_job(smddp: Callable[..., T], ddp: Callable[..., T], **kwargs: Any) -> T:
    """The strategy that fits this process's job; its reason is logged on rank zero.

    Args:
        smddp: Makes the strategy with SMDDP.
        ddp: Makes the plain data parallel strategy, which also serves a single device.
        **kwargs: Passed on.

    Raises:
        SageMakerJobError: If the environment contradicts itself, or the job asks for model parallelism, which this
            version does not have.

    """
    job = SageMakerJob.from_environment()
    selection = select_strategy(job)
    if selection.name == "smp":
        raise SageMakerJobError(
            f"The job asks for model parallelism (mp_parameters={dict(job.model_parallel_parameters)}), which this"
            " version of lightning-sagemaker does not have. HINT: remove mp_parameters from the job, or choose"
            " strategy='smddp' to train data parallel in spite of it."
        )
    rank_zero_info(f"strategy='sagemaker' is {selection.name!r} here. {selection.reason}")
    return (smddp if selection.name == "smddp" else ddp)(job=job, **kwargs)
