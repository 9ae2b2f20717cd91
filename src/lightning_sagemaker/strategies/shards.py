# SPDX-License-Identifier: Apache-2.0
"""What the Trainer's and Fabric's strategies with shared matrices and sharded parameters share."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from lightning_sagemaker.parallel.degrees import ParallelDegrees
from lightning_sagemaker.parallel.sharding import ShardOptions, check_shardable, make_mesh, shard_module


class Shards:
    """Mixin before :class:`~lightning_sagemaker.strategies.smp_parameters.FollowsDegrees`: makes the mesh and uses it."""

    degrees: ParallelDegrees
    activation_checkpointing: bool
    world_size: int
    root_device: torch.device

    def _setup_distributed(self) -> None:
        check_shardable(self.root_device.type)  # refuses before there is any process group
        super()._setup_distributed()  # type: ignore[misc]

    def mesh(self) -> DeviceMesh:
        """As :func:`~lightning_sagemaker.parallel.sharding.make_mesh`."""
        return make_mesh(self.degrees, self.world_size, self.root_device.type)

    def sharding_options(self) -> ShardOptions:
        """How parameters are sharded."""
        return ShardOptions()

    def shard(self, module: nn.Module, mesh: DeviceMesh, methods: Iterable[str] = ()) -> None:
        """Share and shard ``module`` in place, with the weights of the first process. Collective over all processes.

        Args:
            module: Whole.
            mesh: As :meth:`mesh` makes it.
            methods: Of it, which are called from outside beside ``forward``.

        """
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                if isinstance(tensor, DTensor) or tensor.is_meta:  # sharded or made by the user, materialized later
                    continue
                found = tensor.data.to(self.root_device)  # one by one: the whole need not fit there
                dist.broadcast(found, 0)
                tensor.data.copy_(found)
        saving = self.activation_checkpointing, self.degrees.offload_activations
        shard_module(module, mesh, methods, *saving, self.sharding_options())
