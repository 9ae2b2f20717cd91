# SPDX-License-Identifier: Apache-2.0
"""The same strategies for Fabric."""

from __future__ import annotations

from typing import Any

from lightning_sagemaker._lightning import FabricDDPStrategy
from lightning_sagemaker.job import SageMakerJobError
from lightning_sagemaker.strategies.backend import ReducesBySMDDP
from lightning_sagemaker.strategies.choice import build_for_job
from lightning_sagemaker.strategies.job_aware import JobAware


class FabricSageMakerDDPStrategy(JobAware, FabricDDPStrategy):
    """Fabric's DDP with hosts, devices and ranks from the job.

    Args:
        job: The job; read from the process's environment when None.
        **kwargs: Those of ``lightning.fabric.strategies.DDPStrategy``.

    Raises:
        SageMakerJobError: If the environment contradicts itself, or Fabric's arguments contradict the job.

    """


class FabricSMDDPStrategy(ReducesBySMDDP, JobAware, FabricDDPStrategy):
    """The twin of :class:`~lightning_sagemaker.SMDDPStrategy` for ``Fabric(strategy="smddp")``.

    Args:
        job: The job; read from the process's environment when None.
        **kwargs: Those of ``lightning.fabric.strategies.DDPStrategy``; ``process_group_backend`` overrides the choice.

    Raises:
        SageMakerJobError: If the environment contradicts itself, or Fabric's arguments contradict the job.

    """


def fabric_sagemaker_strategy(**kwargs: Any) -> FabricDDPStrategy:
    """What ``Fabric(strategy="sagemaker")`` stands for; see :func:`~lightning_sagemaker.strategies.choice.build_for_job`.

    Args:
        **kwargs: Those of ``lightning.fabric.strategies.DDPStrategy``.

    """
    return build_for_job(FabricSMDDPStrategy, FabricSageMakerDDPStrategy, fabric_smp_strategy, **kwargs)


def fabric_smp_strategy(**kwargs: Any) -> FabricDDPStrategy:
    """Refuses: a loop that calls the model and then ``fabric.backward`` leaves no room for a pipeline.

    Raises:
        SageMakerJobError: Always.

    """
    raise SageMakerJobError(
        "Fabric(strategy='smp') was asked for, but a pipeline runs backward passes between forward passes, which a loop of"
        " model(...) and fabric.backward(...) cannot. HINT: use Trainer(strategy='smp'), or choose strategy='smddp' to"
        " train data parallel in spite of the job's mp_parameters."
    )
