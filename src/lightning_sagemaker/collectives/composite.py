# SPDX-License-Identifier: Apache-2.0
"""One process group, two engines: gradients travel by SMDDP, everything else by gloo and nccl.

SMDDP accelerates a few collectives and refuses others (``ReduceOp.AVG``, ``all_gather_into_tensor``, ...). Lightning,
torchmetrics and user code call whatever they like on the default group, so the default group must be able to do it all:
:class:`CompositeProcessGroup` sends floating-point sums to SMDDP and everything else to an ordinary group inside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
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


_FORWARDED = (
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_into_tensor_coalesced",
    "allreduce_coalesced",
    "alltoall_base",
    "barrier",
    "broadcast",
    "recv",
    "reduce_scatter",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "send",
)
"""The collectives that torch's C++ side looks up in a Python process group, ``allreduce`` apart.

Each must be overridden: what is not found in Python runs with the GIL held, and deadlocks with gloo's thread, which takes
the GIL while it holds the lock that the collective waits for. Two names of one collective are two torch versions'.
"""


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
        backends = {"cpu": _make_gloo(dist.PrefixStore("gloo", store), rank, size, timeout)}
        if torch.cuda.is_available() and dist.is_nccl_available():
            backends["cuda"] = _make_nccl(dist.PrefixStore("nccl", store), rank, size, timeout)
        self._rest = _make_native_group(store, rank, size, timeout, default=backends.get("cuda", backends["cpu"]))
        for group in (self._rest, self):  # in this one too, for what asks a group which devices it serves
            for device, backend in backends.items():
                group._register_backend(torch.device(device), _backend_type(backend), backend)

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
        if opts.reduceOp == dist.ReduceOp.AVG and tensors[0].device.type == "cpu":
            return self._average(tensors, opts)
        return self._rest.allreduce(tensors, opts)

    def _average(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        """Mean by gloo, which has no ``ReduceOp.AVG`` in every torch: the sum, divided when it has arrived."""
        opts.reduceOp = dist.ReduceOp.SUM
        size = self.size()

        def divide(done: torch.futures.Future[Any]) -> list[torch.Tensor]:
            done.value()  # raises here what went wrong there
            # An integer mean is truncated, as Lightning does for gloo.
            return [t.div_(size) if t.is_floating_point() else t.copy_(t / size) for t in tensors]

        return _create_work_from_future(self._rest.allreduce(tensors, opts).get_future().then(divide))


def _forward(name: str) -> Callable[..., Any]:
    def collective(self: CompositeProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._rest, name)(*args, **kwargs)

    collective.__name__ = name
    return collective


for _name in _FORWARDED:
    if hasattr(ProcessGroup, _name):
        setattr(CompositeProcessGroup, _name, _forward(_name))


def _make_gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    gloo = ProcessGroupGloo(store, rank, size, timeout=timeout)
    gloo._set_sequence_number_for_group()
    return gloo


def _make_nccl(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    from torch._C._distributed_c10d import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    nccl = ProcessGroupNCCL(store, rank, size, options)
    nccl._set_sequence_number_for_group()
    return nccl


def _make_native_group(store: dist.Store, rank: int, size: int, timeout: timedelta, default: Any) -> Any:
    """An empty group of torch's own class whose default backend is ``default``'s type."""
    if hasattr(ProcessGroup, "_set_default_backend"):
        group = ProcessGroup(store, rank, size)
        group._set_default_backend(_backend_type(default))
        return group
    # torch 2.5, the last that AWS built SMDDP for, takes the default backend from the options.
    options = ProcessGroup.Options(backend=default.name())  # type: ignore[attr-defined]
    options._timeout = timeout
    return ProcessGroup(store, rank, size, options)  # type: ignore[call-arg]


def _backend_type(backend: Any) -> Any:
    return ProcessGroup.BackendType.GLOO if backend.name() == "gloo" else ProcessGroup.BackendType.NCCL


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
