# SPDX-License-Identifier: Apache-2.0
"""Data parallel strategies for the Trainer: ``"smddp"`` and what ``"sagemaker"`` chooses."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from lightning_sagemaker._lightning import DDPStrategy, reset_seed
from lightning_sagemaker.strategies.backend import ReducesBySMDDP
from lightning_sagemaker.strategies.choice import build_for_job
from lightning_sagemaker.strategies.job_aware import JobAware
from lightning_sagemaker.strategies.smp_parameters import smp_strategy
from lightning_sagemaker.strategies.trainer_defaults import WholeFiles


class SageMakerDDPStrategy(JobAware, WholeFiles, DDPStrategy):
    """Lightning's DDP with hosts, devices and ranks from the job; a plain single device where there is one process.

    Args:
        job: The job; read from the process's environment when None.
        **kwargs: Those of ``lightning.pytorch.strategies.DDPStrategy``.

    Raises:
        SageMakerJobError: If the environment contradicts itself, or the Trainer's arguments contradict the job.

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
    def setup_distributed(self) -> None:
        if self._is_alone:
            reset_seed()  # as DDP does: one of one rank draws what it would have drawn there
            self.set_world_ranks()
        else:
            super().setup_distributed()

    @override
    def setup(self, trainer: Any) -> None:
        if self._is_alone:
            super(DDPStrategy, self).setup(trainer)  # DDP's would synchronise the weights for an evaluation
        else:
            super().setup(trainer)

    @override
    def _setup_model(self, model: Any) -> Any:
        return model if self._is_alone else super()._setup_model(model)


class SMDDPStrategy(ReducesBySMDDP, JobAware, WholeFiles, DDPStrategy):
    """Distributed data parallel with SageMaker's all-reduce library (SMDDP).

    Gradients are reduced by SMDDP: AWS's library where it is installed and can work, this package's open shim on a laptop
    or a simulated cluster. Every other collective goes to nccl or gloo, so nothing that Lightning or torchmetrics does is
    refused. In a job whose image has no SMDDP, nccl or gloo is used for everything; one line says why.

    Args:
        job: The job; read from the process's environment when None.
        **kwargs: Those of ``lightning.pytorch.strategies.DDPStrategy``; ``process_group_backend`` overrides the choice.

    Raises:
        SageMakerJobError: If the environment contradicts itself, or the Trainer's arguments contradict the job.

    """

    @override
    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if self.root_device.type == "cpu":
            # Lightning evaluates without inference mode where it reads that the group is gloo's; here it would read another
            # name for it. Gloo of torch 2.5 cannot write to such tensors, and none can be trained with afterwards.
            for loop in (trainer.validate_loop, trainer.test_loop, trainer.predict_loop):
                loop.inference_mode = False


def sagemaker_strategy(**kwargs: Any) -> Any:
    """What ``Trainer(strategy="sagemaker")`` stands for; see :func:`~lightning_sagemaker.strategies.choice.build_for_job`.

    Args:
        **kwargs: Those of ``lightning.pytorch.strategies.DDPStrategy``.

    """
    strategy = build_for_job(SMDDPStrategy, SageMakerDDPStrategy, smp_strategy, _fsdp, **kwargs)
    strategy.stops_together = strategy.job.in_container
    return strategy


def _fsdp(**kwargs: Any) -> Any:
    from lightning_sagemaker.strategies.fsdp import SMDDPFSDPStrategy

    return SMDDPFSDPStrategy(**kwargs)
