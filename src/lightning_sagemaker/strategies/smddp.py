# SPDX-License-Identifier: Apache-2.0
"""``"smddp"``: data parallel training whose gradients are reduced by SMDDP, for the Trainer and Fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from lightning_sagemaker._lightning import FabricDDPStrategy
from lightning_sagemaker.strategies.backend import SMDDPBackend
from lightning_sagemaker.strategies.ddp import JobDDPStrategy
from lightning_sagemaker.strategies.job_aware import JobAware
from lightning_sagemaker.strategies.may_recover import FabricMayRecover, MayRecover
from lightning_sagemaker.strategies.reduction import FabricReducedGradients, ReducedGradients

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer


class SMDDPStrategy(MayRecover, SMDDPBackend, ReducedGradients, JobDDPStrategy):
    """Distributed data parallel with SageMaker's all-reduce library (SMDDP).

    Gradients are reduced by SMDDP: AWS's library where it is installed and supported, this package's open shim on a
    laptop or a simulated cluster. Every other collective goes to nccl or gloo, so nothing that Lightning or
    torchmetrics does is refused. In a job whose image has no SMDDP, nccl or gloo is used for everything; one line says
    why.

    Args:
        job: The job; read from the process's environment if None.
        recovery: As in :class:`~lightning_sagemaker.SageMakerDDPStrategy`; ``"in_job"`` without SMDDP: its groups cannot be
            recreated in a process.
        gradient_reduction: Algorithm of the gradient reduction. ``"flat"``: DDP's own all-reduce. ``"hierarchical"``: within
            hosts, between hosts on slices, within hosts. ``"auto"``: the fastest in a measurement of about two seconds,
            whose result may differ across starts.
        gradient_compression: Lossy compression: ``"bf16"``, ``"fp16"`` (summed in float32), or low-rank matrices with
            error feedback (``"powersgd"``). ``"auto"`` compresses only where that is faster.
        powersgd_rank: Rank of PowerSGD's matrices; 4 if None.
        powersgd_start: Exact optimizer steps before PowerSGD starts; 1000 if None.
        **kwargs: Arguments of ``lightning.pytorch.strategies.DDPStrategy``; ``process_group_backend`` overrides the choice.

    Raises:
        SageMakerJobError: If the environment contradicts itself, or the Trainer's arguments contradict the job.
        MisconfigurationException: If the gradient options contradict each other.

    """

    @override
    def setup(self, trainer: Trainer) -> None:
        super().setup(trainer)
        if self.root_device.type == "cpu":
            # Lightning disables inference mode in evaluations if the backend's name is gloo; this group has another
            # name. gloo of torch 2.5 cannot write to inference tensors, and these cannot be trained afterwards.
            for loop in (trainer.validate_loop, trainer.test_loop, trainer.predict_loop):
                loop.inference_mode = False


class FabricSMDDPStrategy(FabricMayRecover, SMDDPBackend, FabricReducedGradients, JobAware, FabricDDPStrategy):
    """The counterpart of :class:`~lightning_sagemaker.SMDDPStrategy` for ``Fabric(strategy="smddp")``.

    Args:
        job: The job; read from the process's environment if None.
        recovery: As in :class:`~lightning_sagemaker.SageMakerDDPStrategy`, with
            :class:`~lightning_sagemaker.strategies.fabric_in_job.FabricInJobDDPStrategy`, for an
            :class:`~lightning_sagemaker.InterruptibleLoop`.
        gradient_reduction: ``"flat"``, ``"hierarchical"`` or ``"auto"``, as in
            :class:`~lightning_sagemaker.SMDDPStrategy`.
        gradient_compression: ``"bf16"``, ``"fp16"``, ``"powersgd"`` or None.
        powersgd_rank: Rank of PowerSGD's matrices; 4 if None.
        powersgd_start: Exact optimizer steps before PowerSGD starts; 1000 if None.
        **kwargs: Arguments of ``lightning.fabric.strategies.DDPStrategy``; ``process_group_backend`` overrides the choice.

    Raises:
        SageMakerJobError: If the environment contradicts itself, or Fabric's arguments contradict the job.

    """
