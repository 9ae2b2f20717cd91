# SPDX-License-Identifier: Apache-2.0
"""One process group, two engines: gradients travel by SMDDP, everything else by gloo and nccl.

SMDDP accelerates a few collectives and refuses others (``ReduceOp.AVG``, ``all_gather_into_tensor``, ...). Lightning,
torchmetrics and user code call whatever they like on the default group, so the default group must be able to do it all.
:class:`CompositeProcessGroup` is an ordinary process group with gloo and nccl inside, in which only the collectives that
the engine accelerates are overridden. torch's C++ side (the DDP reducer, functional collectives, device meshes) sees a
process group like any other.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroup, ProcessGroupGloo, _create_work_from_future

COMPOSITE_BACKEND = "smddp_composite"
"""Name under which :func:`register` makes the composite known to ``torch.distributed.init_process_group``."""

COMPOSITE_SWITCH = "LIGHTNING_SAGEMAKER_COMPOSITE"
"""Set to ``0`` to put the bare ``smddp`` backend in the default group, refusals included."""


def composite_enabled() -> bool:
    """Whether the default group is to be the composite (default) and not SMDDP alone."""
    return os.environ.get(COMPOSITE_SWITCH, "1") != "0"


class CompositeProcessGroup(ProcessGroup):
    """A process group that reduces gradients by ``engine`` and leaves the rest to gloo (CPU) and nccl (GPU).

    Args:
        store: Rendezvous store, already private to this group.
        rank: Rank of this process in the group.
        size: Number of processes in the group.
        timeout: How long a collective may take.
        engine: What SMDDP's own backend creator returned; None in a sub-group, because SMDDP has one group only.

    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, engine: Any = None) -> None:
        super().__init__(rank, size)
        self.engine = engine
        gloo = ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout=timeout)
        gloo._set_sequence_number_for_group()
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
        # Kept, because the base class holds no Python reference to what is registered.
        self._side = {"cpu": gloo}
        if torch.cuda.is_available() and dist.is_nccl_available():
            self._side["cuda"] = self._register_nccl(dist.PrefixStore("nccl", store), rank, size, timeout)
        default = ProcessGroup.BackendType.NCCL if "cuda" in self._side else ProcessGroup.BackendType.GLOO
        self._set_default_backend(default)

    def _register_nccl(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
        from torch._C._distributed_c10d import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = timeout
        nccl = ProcessGroupNCCL(store, rank, size, options)
        nccl._set_sequence_number_for_group()
        self._register_backend(torch.device("cuda"), ProcessGroup.BackendType.NCCL, nccl)
        return nccl

    def getBackendName(self) -> str:  # noqa: N802 - the name that torch's C++ side calls
        """Name of this group in torch's messages."""
        return COMPOSITE_BACKEND

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        """All-reduce in place: floating-point sums (which gradients are) by the engine, anything else by gloo or nccl.

        Args:
            tensors: A list with one tensor of any shape, or the tensor.
            opts: ``AllreduceOptions``; the sum when None.

        """
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        opts = AllreduceOptions() if opts is None else opts
        if self.engine is not None and opts.reduceOp == dist.ReduceOp.SUM and tensors[0].is_floating_point():
            return self.engine.allreduce(tensors, opts)  # type: ignore[no-any-return]
        side = self._side[tensors[0].device.type]
        if opts.reduceOp == dist.ReduceOp.AVG and tensors[0].device.type == "cpu":
            return self._average(side, tensors, opts)
        return side.allreduce(tensors, opts)

    def _average(self, gloo: Any, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        """Mean by gloo, which has no ``ReduceOp.AVG``: the sum, divided when it has arrived."""
        opts.reduceOp = dist.ReduceOp.SUM
        size = self.size()

        def divide(done: torch.futures.Future[Any]) -> list[torch.Tensor]:
            done.value()  # raises here what went wrong there
            # An integer mean is truncated, as Lightning does for gloo.
            return [t.div_(size) if t.is_floating_point() else t.copy_(t / size) for t in tensors]

        return _create_work_from_future(gloo.allreduce(tensors, opts).get_future().then(divide))


def register() -> None:
    """Make :data:`COMPOSITE_BACKEND` known to ``torch.distributed``; idempotent.

    The backend ``smddp`` must be registered first (by importing ``torch_smddp``, AWS's or the shim's).
    """
    if COMPOSITE_BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(COMPOSITE_BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, _: Any) -> CompositeProcessGroup:
    store, rank, size, timeout = options.store, options.group_rank, options.group_size, options.timeout
    # torch names the members of every group but the default one; SMDDP documents that it has no sub-groups.
    is_default_group = not options.global_ranks_in_group
    engine = _create_engine(dist.PrefixStore("smddp", store), rank, size, timeout) if is_default_group else None
    return CompositeProcessGroup(store, rank, size, timeout, engine)


def _create_engine(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """Call SMDDP's creator the way ``init_process_group(backend="smddp")`` would."""
    plugin = dist.Backend._plugins["SMDDP"]
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, size, timeout)
    options = torch._C._distributed_c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size, options.timeout = store, rank, size, timeout
    options.group_id, options.global_ranks_in_group = "smddp", []
    return plugin.creator_fn(options, None)
