# SPDX-License-Identifier: Apache-2.0
"""What ``strategy="sagemaker"`` stands for, for the Trainer and Fabric alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.selection import select_strategy

T = TypeVar("T")


def build_for_job(
    smddp: Callable[..., T], ddp: Callable[..., T], smp: Callable[..., T], fsdp: Callable[..., T], **kwargs: Any
) -> T:
    """The strategy that fits this process's job; its reason is logged on rank zero.

    Args:
        smddp: Makes the strategy with SMDDP.
        ddp: Makes the plain data parallel strategy, which also serves a single device.
        smp: Makes the strategy for model parallelism.
        fsdp: Makes the strategy for sharded parameters that SMDDP gathers.
        **kwargs: Passed on.

    Raises:
        SageMakerJobError: If the environment contradicts itself.

    """
    job = SageMakerJob.from_environment()
    selection = select_strategy(job)
    rank_zero_info(f"strategy='sagemaker' is {selection.name!r} here. {selection.reason}")
    make = {"smddp": smddp, "smp": smp, "smddp_fsdp": fsdp, "ddp": ddp, "single_device": ddp}
    return make[selection.name](job=job, **kwargs)
