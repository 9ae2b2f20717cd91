# SPDX-License-Identifier: Apache-2.0
"""One process group, two engines: gradients go to SMDDP, everything else to gloo and nccl.

SMDDP accelerates a few collectives and refuses others (``ReduceOp.AVG``, ``all_gather_into_tensor``, ...). Lightning,
torchmetrics and user code may call any collective on the default group, so the default group must support all of them:
:class:`CompositeProcessGroup` sends floating-point sums to SMDDP and everything else to an ordinary group inside it.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lightning_sagemaker._compat import monitored_barrier
from lightning_sagemaker.collectives.native import NativeBackedGroup, allreduce_arguments, reduces_by, untraced

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from lightning_sagemaker._types import AllreduceOptions, BackendOptions
    from lightning_sagemaker.collectives.native import Tensors


COMPOSITE_BACKEND = "smddp_composite"
"""Name under which :func:`register` makes the composite known to ``torch.distributed.init_process_group``."""

COMPOSITE_SWITCH = "LIGHTNING_SAGEMAKER_COMPOSITE"
"""Set to ``0`` to use the ``smddp`` backend alone for the default group, with the collectives that it refuses."""


def composite_enabled() -> bool:
    """Whether the default group is the composite (the default) rather than SMDDP alone."""
    return os.environ.get(COMPOSITE_SWITCH, "1") != "0"


class CompositeProcessGroup(NativeBackedGroup):
    """A process group that reduces gradients by ``engine`` and sends the rest to gloo (CPU) and nccl (GPU).

    Args:
        store: Rendezvous store, already prefixed for this group.
        rank: Rank of this process in the group.
        size: Number of processes in the group.
        timeout: Time limit of a collective.
        engine: SMDDP's own process group; None in a sub-group, because SMDDP supports only the default group.

    """

    backend_name = COMPOSITE_BACKEND

    def __init__(
        self, store: dist.Store, rank: int, size: int, timeout: timedelta, engine: ProcessGroup | None = None
    ) -> None:
        super().__init__(store, rank, size, timeout)
        self.engine = engine

    @untraced
    def allreduce(self, tensors: Tensors, opts: AllreduceOptions | None = None) -> dist.Work:  # type: ignore[override]
        """All-reduce in place: floating-point sums (which gradients are) by the engine, anything else by gloo or nccl.

        Args:
            tensors: A list with one tensor of any shape, or the tensor.
            opts: ``AllreduceOptions``; a sum if None.

        """
        tensors, opts = allreduce_arguments(tensors, opts)
        if self.engine is not None and reduces_by(opts, dist.ReduceOp.SUM) and tensors[0].is_floating_point():
            return self.engine.allreduce(tensors, opts)
        return super().allreduce(tensors, opts)


def register() -> None:
    """Make :data:`COMPOSITE_BACKEND` known to ``torch.distributed``; idempotent.

    The backend ``smddp`` must be registered first (by importing ``torch_smddp``, AWS's or the shim's).
    """
    monitored_barrier.take_over(CompositeProcessGroup)
    if COMPOSITE_BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(COMPOSITE_BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: BackendOptions, _: object) -> CompositeProcessGroup:
    store, rank, size, timeout = options.store, options.group_rank, options.group_size, options.timeout
    # torch names the members of every group but the default one; SMDDP documents that it has no sub-groups.
    is_default_group = not options.global_ranks_in_group
    engine = create_engine(dist.PrefixStore("smddp", store), rank, size, timeout) if is_default_group else None
    return CompositeProcessGroup(store, rank, size, timeout, engine)


def create_engine(store: dist.Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """Call SMDDP's creator the way ``init_process_group(backend="smddp")`` would."""
    plugin = dist.Backend._plugins["SMDDP"]
    if not plugin.extended_api:
        engine: ProcessGroup = plugin.creator_fn(store, rank, size, timeout)
        return engine
    options = torch._C._distributed_c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size, options.timeout = store, rank, size, timeout
    options.group_id, options.global_ranks_in_group = "smddp", []
    engine = plugin.creator_fn(options, None)
    return engine
