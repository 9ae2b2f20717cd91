# SPDX-License-Identifier: Apache-2.0
"""Sharded data parallel training with several replicas, which continues with the others when one loses a rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch.distributed as dist
from typing_extensions import override

from lightning_sagemaker._compat.sharding import FSDPModule
from lightning_sagemaker._lightning import ModelParallelStrategy, reset_seed
from lightning_sagemaker.parallel.sharding import DP_SHARD, check_shardable
from lightning_sagemaker.recovery.refused import CannotRecover, restarting_instead
from lightning_sagemaker.recovery.replicas import Replicas
from lightning_sagemaker.strategies.fsdp import SMDDPFSDPStrategy
from lightning_sagemaker.strategies.recovering import RecoversInJob

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from lightning_sagemaker._types import Trainer


class InJobFSDPStrategy(RecoversInJob, SMDDPFSDPStrategy):
    """``"smddp_fsdp"`` with replicas of the shards (``hybrid_shard_degree``), which keeps training when a rank dies.

    A replica that loses a rank is restarted, and receives its state from another one, shard by shard. The processes must be
    started by ``lightning-sagemaker supervise``. Gradients are reduced in each backward pass, also while accumulating.

    Args:
        **kwargs: Arguments of :class:`~lightning_sagemaker.SMDDPFSDPStrategy`.

    Raises:
        RecoveryError: If no supervisor started this process.

    """

    _replicas: Replicas | None = None

    @override
    def _setup_distributed(self) -> None:
        check_shardable(self.root_device.type)
        self.degrees.shards(self.shards)  # raises before any process group is created
        super(ModelParallelStrategy, self).setup_environment()
        reset_seed()
        self._process_group_backend = self._get_process_group_backend()
        self._replicas = self.join_job(Replicas(self.degrees.shard, self.root_device.type, DP_SHARD)).replicas
        self.set_world_ranks()
        self._data_parallel_size = dist.get_world_size()
        self.log_ignored_parameters()

    @override
    def mesh(self) -> DeviceMesh:
        assert self._replicas is not None
        return self._replicas.mesh

    @override
    def shard(self, module: nn.Module, mesh: DeviceMesh, methods: Iterable[str] = ()) -> None:
        assert self.rank is not None
        with restarting_instead(self.rank.client, self.is_asked):
            if any(isinstance(part, FSDPModule) for part in module.modules()):
                raise CannotRecover(
                    "configure_model calls fully_shard itself, whose process groups cannot be recreated"
                )
        super().shard(module, mesh, methods)
        assert self._replicas is not None
        self._replicas.follow(module)

    @override
    def setup(self, trainer: Trainer) -> None:
        self.prepare(trainer)
        super().setup(trainer)

    @contextlib.contextmanager
    @override
    def block_backward_sync(self) -> Iterator[None]:
        """Does nothing: gradients of accumulated batches are reduced at once, not to mix with a lost rank's shard."""
        yield
