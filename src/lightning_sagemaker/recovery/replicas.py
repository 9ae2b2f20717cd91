# SPDX-License-Identifier: Apache-2.0
"""Replicas of a model, each sharded across several ranks: the process groups within one and across them, in each quorum.

Parameters are gathered, and gradients are reduced, within a replica as in FSDP; then each rank's shards are averaged with
the same shards of the other replicas. A replica that loses a rank is lost, and the others continue without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from weakref import WeakSet

import torch.distributed as dist
from torch import nn
from torch.distributed.constants import default_pg_timeout
from torch.distributed.device_mesh import DeviceMesh

from lightning_sagemaker._compat.fsdp_groups import begin_again, check_names, move_to
from lightning_sagemaker._compat.group_timeout import set_timeout
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.replica_ranks import replica_of


class Replicas:
    """The replicas of a job.

    Args:
        size: Number of ranks of each replica, which are consecutive.
        device_type: Device type of the parameters.
        dimension: Name of the device mesh's dimension.

    Attributes:
        across: Process group of the ranks that hold the same shards as this one.

    """

    def __init__(self, size: int, device_type: str, dimension: str) -> None:
        self.size, self._device_type, self._dimension = size, device_type, dimension
        self.across: dist.ProcessGroup | None = None
        self._mesh: DeviceMesh | None = None
        self._modules = WeakSet[nn.Module]()

    @property
    def mesh(self) -> DeviceMesh:
        """Device mesh of the ranks of this rank's replica."""
        assert self._mesh is not None
        return self._mesh

    def follow(self, module: nn.Module) -> None:
        """Make a module that is sharded on :attr:`mesh` use the groups of each quorum.

        Raises:
            NameGone: If this version of torch is too new to know how.

        """
        check_names(module, self.mesh)
        self._modules.add(module)

    def form(self, order: Sequence[int], timeout: timedelta) -> None:
        """Create the groups of a quorum, after its default group. Collective over it.

        Args:
            order: Global ranks of the quorum.
            timeout: Time limit of the creation.

        Raises:
            RecoveryError: If a replica is incomplete, as after a loss outside of a fit.

        """
        if [*order] != [mate for rank in order[:: self.size] for mate in replica_of(rank, self.size)]:
            raise RecoveryError(
                "A replica of the model has lost a rank after the first fit, so its weights are incomplete. HINT: start the"
                " job again."
            )
        rank = dist.get_rank()
        within = _group([*replica_of(rank, self.size)], timeout)
        self.across = _group([*range(rank % self.size, len(order), self.size)], timeout)
        if self._mesh is None:
            self._mesh = DeviceMesh.from_group(within, self._device_type, mesh_dim_names=(self._dimension,))
        else:
            move_to(within, self._mesh, self._modules)
        for module in self._modules:
            begin_again(module)


def _group(ranks: list[int], timeout: timedelta) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(ranks, timeout=timeout, use_local_synchronization=True)
    set_timeout(default_pg_timeout, group)
    return group
