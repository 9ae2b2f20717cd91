# SPDX-License-Identifier: Apache-2.0
"""What ``"sagemaker"`` selects without SMDDP: Lightning's DDP in a job, for the Trainer and Fabric."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from typing_extensions import override

from lightning_sagemaker._compat.checkpoint_io import complete
from lightning_sagemaker._lightning import DDPStrategy, FabricDDPStrategy, reset_seed
from lightning_sagemaker.checkpoint.io import SafeCheckpointIO
from lightning_sagemaker.collectives.agreement import run_and_sync_errors
from lightning_sagemaker.strategies.job_aware import JobAware
from lightning_sagemaker.strategies.may_recover import FabricMayRecover, MayRecover
from lightning_sagemaker.strategies.reduction import FabricReducedGradients, ReducedGradients
from lightning_sagemaker.strategies.trainer_defaults import JobDefaults

if TYPE_CHECKING:
    from torch import nn

    from lightning_sagemaker._types import Checkpoint, CheckpointIO, PathLike, Trainer


class JobDDPStrategy(JobAware, JobDefaults, DDPStrategy):
    """Base of the Trainer's strategies with one checkpoint file.

    A checkpoint is only replaced by a complete one; if the writing process fails, all processes raise, instead of
    waiting for it.
    """

    @property
    @override
    def checkpoint_io(self) -> CheckpointIO:
        """The plugin that writes checkpoints: the user's, which wraps this package's unless it wraps another one."""
        if self._checkpoint_io is None:
            self._checkpoint_io = SafeCheckpointIO()
        complete(self._checkpoint_io, SafeCheckpointIO())
        return self._checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    @override
    def save_checkpoint(self, checkpoint: Checkpoint, filepath: PathLike, storage_options: object = None) -> None:
        """Write a checkpoint from rank zero; called on all ranks.

        Raises:
            RuntimeError: On all ranks, if it cannot be written.

        """

        def save() -> None:
            super(JobDDPStrategy, self).save_checkpoint(checkpoint, filepath, storage_options)

        if dist.is_initialized() and dist.get_world_size() > 1:
            run_and_sync_errors(save)
        else:
            save()


class _ServesOneProcess:
    """Strategies that also run as a single process; for the Trainer and Fabric."""

    world_size: int

    serves_one_device = True
    """Whether one process may train on the MPS device of a Mac."""
    forks_in_notebooks = True
    """Start method, as Lightning chooses it with its own strategies."""

    @property
    def _is_alone(self) -> bool:
        """One process needs neither a process group nor the DDP wrapper."""
        return bool(self.world_size == 1)


class SageMakerDDPStrategy(MayRecover, _ServesOneProcess, ReducedGradients, JobDDPStrategy):
    """Lightning's DDP with hosts, devices and ranks from the job; a plain single device if there is one process.

    Args:
        job: The job; read from the process's environment if None.
        recovery: With ``"in_job"`` training continues when a rank dies, with
            :class:`~lightning_sagemaker.strategies.in_job.InJobDDPStrategy`, which is created instead of this one;
            with ``"restart"`` it does not. Default: ``"in_job"`` if ``lightning-sagemaker supervise`` started the process.
        gradient_reduction: ``"flat"``, ``"hierarchical"`` or ``"auto"``, as in
            :class:`~lightning_sagemaker.SMDDPStrategy`.
        gradient_compression: ``"bf16"``, ``"fp16"``, ``"powersgd"`` or None.
        powersgd_rank: Rank of PowerSGD's matrices; 4 if None.
        powersgd_start: Exact optimizer steps before PowerSGD starts; 1000 if None.
        **kwargs: Arguments of ``lightning.pytorch.strategies.DDPStrategy``.

    Raises:
        SageMakerJobError: If the environment contradicts itself, or the Trainer's arguments contradict the job.
        MisconfigurationException: If the gradient options contradict each other.

    """

    @override
    def setup_distributed(self) -> None:
        self.set_world_ranks()  # only a Trainer does it before; until then the environment may say one process
        if self._is_alone:
            reset_seed()  # as DDP does, so that a single rank draws the same random numbers
        else:
            super().setup_distributed()

    @override
    def setup(self, trainer: Trainer) -> None:
        if self._is_alone:
            super(DDPStrategy, self).setup(trainer)  # not DDP's, which would synchronize weights
        else:
            super().setup(trainer)

    @override
    def _setup_model(self, model: nn.Module) -> Any:
        return model if self._is_alone else super()._setup_model(model)


class _NothingToSync:
    """A single process has nothing to synchronize while gradients are accumulated."""

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class FabricSageMakerDDPStrategy(
    FabricMayRecover, _ServesOneProcess, FabricReducedGradients, JobAware, FabricDDPStrategy
):
    """Fabric's DDP with hosts, devices and ranks from the job; a plain single device if there is one process.

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
        **kwargs: Arguments of ``lightning.fabric.strategies.DDPStrategy``.

    Raises:
        SageMakerJobError: If the environment contradicts itself, or Fabric's arguments contradict the job.

    """

    @override
    def _setup_distributed(self) -> None:
        self._set_world_ranks()  # only a Fabric does it before
        if not self._is_alone:
            super()._setup_distributed()
            return
        self._backward_sync_control: Any = _NothingToSync()

    @override
    def setup_module(self, module: nn.Module) -> Any:
        return module if self._is_alone else super().setup_module(module)
