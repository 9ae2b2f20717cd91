# SPDX-License-Identifier: Apache-2.0
"""What the Trainer's and Fabric's strategies with shared matrices and sharded parameters share."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lightning_sagemaker.parallel.degrees import ParallelDegrees
from lightning_sagemaker.parallel.sharding import REPLICAS, SHARDS, TENSOR, shard_module


class Shards:
    """Mixin before :class:`~lightning_sagemaker.strategies.smp_parameters.FollowsDegrees`: makes the mesh and uses it."""

    degrees: ParallelDegrees
    activation_checkpointing: bool
    world_size: int
    root_device: torch.device

    def mesh(self) -> DeviceMesh:
        """The ranks by copy, place among those that share its parameters, and place among those that share matrices."""
        shards = self.degrees.shards(self.world_size)
        places = {self.degrees.coordinates(rank, self.world_size): rank for rank in range(self.world_size)}
        order = sorted(places, key=lambda at: (at.replica, at.tensor))
        ranks = torch.tensor([places[at] for at in order]).reshape(-1, shards, self.degrees.tensor)
        return DeviceMesh(self.root_device.type, ranks, mesh_dim_names=(REPLICAS, SHARDS, TENSOR))

    def shard(self, module: nn.Module, mesh: DeviceMesh, methods: Iterable[str] = ()) -> None:
        """Share and shard ``module`` in place, with the weights of the first process. Collective over all processes.

        Args:
            module: Whole.
            mesh: As :meth:`mesh` makes it.
            methods: Of it, which are called from outside beside ``forward``.

        """
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                found = tensor.data.to(self.root_device)  # one by one: the whole need not fit there
                dist.broadcast(found, 0)
                tensor.data.copy_(found)
        shard_module(module, mesh, methods, self.activation_checkpointing, self.degrees.offload_activations)
