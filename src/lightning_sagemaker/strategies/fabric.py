# SPDX-License-Identifier: Apache-2.0
"""The same strategies for Fabric."""

from __future__ import annotations

from typing import Any

from lightning_sagemaker._lightning import FabricDDPStrategy
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


def fabric_sagemaker_strategy(**kwargs: Any) -> Any:
    """What ``Fabric(strategy="sagemaker")`` stands for; see :func:`~lightning_sagemaker.strategies.choice.build_for_job`.

    Args:
        **kwargs: Those of ``lightning.fabric.strategies.DDPStrategy``.

    """
    return build_for_job(FabricSMDDPStrategy, FabricSageMakerDDPStrategy, _smp, **kwargs)


def _smp(**kwargs: Any) -> Any:
    from lightning_sagemaker.strategies.fabric_smp import fabric_smp_strategy

    return fabric_smp_strategy(**kwargs)
