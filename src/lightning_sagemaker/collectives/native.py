# SPDX-License-Identifier: Apache-2.0
"""A process group written in Python over torch's own gloo (CPU) and nccl (GPU): the base of SMDDP's groups."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (  # type: ignore[attr-defined]
    AllreduceOptions,
    ProcessGroup,
    ProcessGroupGloo,
    ScatterOptions,
    _create_work_from_future,
)

from lightning_sagemaker.collectives import clean_exit, forks

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroupNCCL

    from lightning_sagemaker._types import TorchBackend


_SAME = (
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "reconfigure",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
TRAMPOLINED = {name: name for name in _SAME} | {
    "end_coalescing": "_end_coalescing",
    "recvAnysource": "recv_anysource",
    "start_coalescing": "_start_coalescing",
}
"""Method that torch's C++ side looks up in a Python process group, torch 2.5 to 2.15 -> method of torch's own groups.

Each must be overridden: a method that is not found in Python runs with the GIL held, and deadlocks with gloo's thread, which
takes the GIL while it holds the lock that the collective waits for. Two names of one collective are of different torch
versions.
"""


Tensors = torch.Tensor | list[torch.Tensor]
"""A list with one tensor, or the tensor."""
F = TypeVar("F", bound=Callable[..., object])


def untraced(function: F) -> F:
    """Exclude a method that torch's C++ side calls, and all that it calls, from ``torch.compile``.

    DDP around a compiled module rebuilds its buckets within a compiled step; a graph cannot contain a process group.
    """
    return cast(F, torch.compiler.disable(function))  # type: ignore[no-untyped-call]


class NativeBackedGroup(ProcessGroup):
    """A process group whose collectives all go to ``native``, torch's own group over gloo and nccl; to be subclassed.

    Args:
        store: Rendezvous store, already prefixed for this group.
        rank: Rank of this process in the group.
        size: Number of processes in the group.
        timeout: Time limit of a collective.

    """

    backend_name = "native"
    """Name of the backend in ``torch.distributed``."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        clean_exit.register(self.backend_name)
        forks.guard()
        backends: dict[str, TorchBackend] = {"cpu": _make_gloo(dist.PrefixStore("gloo", store), rank, size, timeout)}
        if torch.cuda.is_available() and dist.is_nccl_available():
            backends["cuda"] = _make_nccl(dist.PrefixStore("nccl", store), rank, size, timeout)
        self.gloo = backends["cpu"]
        default = backends.get("cuda", self.gloo)
        self.native = _make_native_group(store, rank, size, timeout, default)
        if hasattr(self, "_set_default_backend"):  # torch 2.15's flight recorder reads the group's name
            self._set_default_backend(_backend_type(default))
        for group in (self.native, self):  # also in ``self``, for collectives that torch does not look up in Python
            for device, backend in backends.items():
                group._register_backend(torch.device(device), _backend_type(backend), backend)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # while finalizing, module globals are gone and no thread gets the GIL any more
            clean_exit.let_threads_finish()

    @untraced
    def getBackendName(self) -> str:  # the name that torch's C++ side calls
        """Name of this group in torch's messages."""
        return self.backend_name

    @untraced
    def allreduce(self, tensors: Tensors, opts: AllreduceOptions | dist.ReduceOp | None = None) -> dist.Work:  # type: ignore[override]
        """All-reduce in place by gloo or nccl.

        Args:
            tensors: A list with one tensor of any shape, or the tensor.
            opts: ``AllreduceOptions``, a reduce operation, or None for a sum.

        """
        tensors, opts = allreduce_arguments(tensors, opts)
        if reduces_by(opts, dist.ReduceOp.AVG) and tensors[0].device.type == "cpu":
            return self.average(tensors, opts)
        return (
            self.add_up(tensors, opts) if reduces_by(opts, dist.ReduceOp.SUM) else self.native.allreduce(tensors, opts)
        )

    @untraced
    def add_up(self, tensors: list[torch.Tensor], opts: AllreduceOptions) -> dist.Work:
        """Sum over all processes, in place.

        Args:
            tensors: A list with one tensor.
            opts: ``AllreduceOptions`` whose operation is the sum.

        """
        return self.native.allreduce(tensors, opts)

    @untraced
    def average(self, tensors: list[torch.Tensor], opts: AllreduceOptions) -> dist.Work:
        """Mean by gloo, which has no ``ReduceOp.AVG`` in every torch: the sum, divided on completion.

        Args:
            tensors: A list with one tensor, averaged in place; an integer mean is truncated, as Lightning does for
                gloo.
            opts: ``AllreduceOptions``, whose operation is set to the sum.

        """
        opts.reduceOp = dist.ReduceOp(dist.ReduceOp.SUM)
        size = self.size()

        def divide(done: torch.futures.Future[object]) -> list[torch.Tensor]:
            done.value()  # re-raises an error of the sum
            return [t.div_(size) if t.is_floating_point() else t.copy_(t / size) for t in tensors]

        work: dist.Work = _create_work_from_future(self.add_up(tensors, opts).get_future().then(divide))
        return work


def _forward(name: str) -> Callable[..., object]:
    @untraced
    def collective(self: NativeBackedGroup, *args: object, **kwargs: object) -> object:
        return getattr(self.native, name)(*args, **kwargs)

    collective.__name__ = name
    return collective


def _alltoall(
    self: NativeBackedGroup, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *opts: object
) -> dist.Work:
    """All-to-all; as a series of scatters where gloo does not support it (torch 2.5).

    ``torch.distributed.nn.all_gather``, hence ``all_gather(sync_grads=True)``, does the same for a group named "gloo".
    """
    try:
        work: dist.Work = self.native.alltoall(outputs, inputs, *opts)
        return work
    except RuntimeError as error:
        if "does not support alltoall" not in str(error):
            raise
    scattered: list[torch.futures.Future[object]] = []
    for root, output in enumerate(outputs):
        options = ScatterOptions()
        options.rootRank = root
        scattered.append(self.native.scatter([output], [inputs] if root == self.rank() else [], options).get_future())

    def finish(done: torch.futures.Future[list[torch.futures.Future[object]]]) -> list[torch.Tensor]:
        for one in done.value():
            one.value()  # re-raises an error of the scatter
        return outputs

    scatters: dist.Work = _create_work_from_future(torch.futures.collect_all(scattered).then(finish))
    return scatters


for _name, _method in TRAMPOLINED.items():
    if hasattr(ProcessGroup, _method) and _name not in vars(NativeBackedGroup):
        setattr(NativeBackedGroup, _name, _alltoall if _name == "alltoall" else _forward(_method))


def reduces_by(opts: AllreduceOptions, operation: object) -> bool:
    """Whether an all-reduce uses ``operation``, whose members torch annotates with another type."""
    used: object = opts.reduceOp
    return used == operation


def allreduce_arguments(
    tensors: Tensors, opts: AllreduceOptions | dist.ReduceOp | None
) -> tuple[list[torch.Tensor], AllreduceOptions]:
    """Normalize the arguments of a group's ``allreduce``: a list with one tensor, and ``AllreduceOptions``.

    Args:
        tensors: A list with one tensor, or the tensor.
        opts: ``AllreduceOptions``, a reduce operation, or None for a sum.

    """
    if not isinstance(opts, AllreduceOptions):
        operation, opts = opts, AllreduceOptions()
        if operation is not None:
            opts.reduceOp = operation
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors, opts


def _make_gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupGloo:
    gloo = ProcessGroupGloo(store, rank, size, timeout=timeout)
    gloo._set_sequence_number_for_group()
    return gloo


def _make_nccl(store: dist.Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupNCCL:
    from torch._C._distributed_c10d import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    nccl = ProcessGroupNCCL(store, rank, size, options)
    nccl._set_sequence_number_for_group()
    return nccl


def _make_native_group(
    store: dist.Store, rank: int, size: int, timeout: timedelta, default: TorchBackend
) -> ProcessGroup:
    """An empty group of torch's own class whose default backend has ``default``'s type."""
    if hasattr(ProcessGroup, "_set_default_backend"):
        group = ProcessGroup(store, rank, size)
        group._set_default_backend(_backend_type(default))
        return group
    # torch 2.5, the last that AWS built SMDDP for, takes the default backend from the options.
    options = ProcessGroup.Options(backend=default.name())  # type: ignore[attr-defined]
    options._timeout = timeout
    return ProcessGroup(store, rank, size, options)  # type: ignore[call-arg]


def _backend_type(backend: TorchBackend) -> ProcessGroup.BackendType:
    return ProcessGroup.BackendType.GLOO if backend.name() == "gloo" else ProcessGroup.BackendType.NCCL
