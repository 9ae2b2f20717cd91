# SPDX-License-Identifier: Apache-2.0
"""The same strategies for Fabric."""

from __future__ import annotations

import contextlib
from typing import Any

from typing_extensions import override

from lightning_sagemaker._lightning import FabricDDPStrategy
from lightning_sagemaker.strategies.backend import ReducesBySMDDP
from lightning_sagemaker.strategies.choice import build_for_job
from lightning_sagemaker.strategies.job_aware import JobAware


class _NothingToSync:
    """One process holds no gradients back while they are accumulated."""

    def no_backward_sync(self, module: Any, enabled: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class FabricSageMakerDDPStrategy(JobAware, FabricDDPStrategy):
    """Fabric's DDP with hosts, devices and ranks from the job; a plain single device where there is one process.

    Args:
        job: The job; read from the process's environment when None.
        **kwargs: Those of ``lightning.fabric.strategies.DDPStrategy``.

    Raises:
        SageMakerJobError: If the environment contradicts itself, or Fabric's arguments contradict the job.

    """

    serves_one_device = True
    """On a Mac too, on its MPS device."""
    forks_in_notebooks = True
    """As Lightning does where it chooses the strategy."""

    @property
    def _is_alone(self) -> bool:
        """One process needs neither a process group nor the DDP wrapper."""
        return bool(self.world_size == 1)

    @override
    def _setup_distributed(self) -> None:
        if not self._is_alone:
            super()._setup_distributed()
            return
        self._set_world_ranks()
        self._backward_sync_control: Any = _NothingToSync()

    @override
    def setup_module(self, module: Any) -> Any:
        return module if self._is_alone else super().setup_module(module)


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
    return build_for_job(FabricSMDDPStrategy, FabricSageMakerDDPStrategy, _smp, _fsdp, **kwargs)


def _smp(**kwargs: Any) -> Any:
    from lightning_sagemaker.strategies.fabric_smp import fabric_smp_strategy

    return fabric_smp_strategy(**kwargs)


def _fsdp(**kwargs: Any) -> Any:
    from lightning_sagemaker.strategies.fabric_fsdp import FabricSMDDPFSDPStrategy

    return FabricSMDDPFSDPStrategy(**kwargs)
