# SPDX-License-Identifier: Apache-2.0
"""``"smddp_fsdp"`` for the Trainer and Fabric: sharded data parallel training, parameters gathered by SMDDP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from typing_extensions import override

from lightning_sagemaker.parallel.sharding import ShardOptions
from lightning_sagemaker.strategies.fsdp_options import TakesShardOptions, move_buffers, without_sync
from lightning_sagemaker.strategies.gathers import GathersBySMDDP
from lightning_sagemaker.strategies.may_recover import ReplicasMayRecover
from lightning_sagemaker.strategies.sharded import FabricSMPShardedStrategy, SMPShardedStrategy


class SMDDPFSDPStrategy(ReplicasMayRecover, GathersBySMDDP, TakesShardOptions, SMPShardedStrategy):
    """Sharded data parallel (FSDP2) with SageMaker's AllGather (SMDDP).

    The LightningModule stays unchanged: after ``configure_model`` the parameters of each repeated block are sharded as
    a unit, the remaining ones as another unit. If ``configure_model`` itself calls ``fully_shard`` on ``self.device_mesh``,
    its sharding is kept. SMDDP gathers parameters where it supports them, everything else goes to nccl or gloo; rank
    zero logs the share of both once. While gradients are accumulated they stay unsharded on each process and are not
    communicated.

    Args:
        recovery: With ``"in_job"`` training continues with the other replicas when a rank dies, with
            :class:`~lightning_sagemaker.strategies.in_job_fsdp.InJobFSDPStrategy`, which is created instead of this one;
            with ``"restart"`` all ranks restart. Default: ``"in_job"`` if ``lightning-sagemaker supervise`` started the
            process and there are replicas.
        **kwargs: ``hybrid_shard_degree``, ``auto_wrap_policy``, ``mp_policy``, ``cpu_offload`` and
            ``reshard_after_forward`` of :class:`~lightning_sagemaker.strategies.fsdp_options.TakesShardOptions`,
            ``async_checkpoint`` and ``save_distributed_checkpoint`` of
            :class:`~lightning_sagemaker.strategies.async_checkpointing.AsyncCheckpointing`,
            ``activation_checkpointing``, ``parameters``, ``degrees`` and ``job`` of
            :class:`~lightning_sagemaker.strategies.smp_parameters.ParallelLayout`, and those of
            ``lightning.pytorch.strategies.ModelParallelStrategy``; ``process_group_backend`` overrides the choice.

    Raises:
        ParallelConfigError: If the parameters contradict each other or the number of processes.
        MisconfigurationException: If the precision is not supported with FSDP2.

    """

    @override
    def setup_environment(self) -> None:
        self.sharding_options()  # raises before any process group is created
        super().setup_environment()

    @override
    def sharding_options(self) -> ShardOptions:
        return self.options_for(self.precision_plugin)

    @override
    def model_to_device(self) -> None:
        assert self.model is not None
        if self.shard_options.cpu_offload:
            move_buffers(self.model, self.root_device)
        else:
            super().model_to_device()

    @contextmanager
    @override
    def block_backward_sync(self) -> Iterator[None]:
        """Context in which gradients are accumulated without communication."""
        assert self.model is not None
        with without_sync(self.model):
            yield


class FabricSMDDPFSDPStrategy(GathersBySMDDP, TakesShardOptions, FabricSMPShardedStrategy):
    """The counterpart of :class:`~lightning_sagemaker.SMDDPFSDPStrategy` for ``Fabric(strategy="smddp_fsdp")``.

    Args:
        save_distributed_checkpoint: Whether each process writes its shard into a folder, else rank zero writes one file.
        **kwargs: Arguments of :class:`~lightning_sagemaker.SMDDPFSDPStrategy`.

    Raises:
        ParallelConfigError: If the parameters contradict each other or the number of processes.
        MisconfigurationException: If the precision is not supported with FSDP2.

    """

    @override
    def _setup_distributed(self) -> None:
        self.sharding_options()  # raises before any process group is created
        super()._setup_distributed()

    @override
    def sharding_options(self) -> ShardOptions:
        return self.options_for(self.precision)
