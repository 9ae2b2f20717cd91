# SPDX-License-Identifier: Apache-2.0
"""The shim's process group: gloo or nccl, and as strict as SMDDP, so that a script that works here works on SageMaker.

The refused collectives depend on SMDDP's mode (see ``smddp_modes.py``). In AllReduce mode, under mpirun, they are those
that AWS documents (developer guide, "SMDDP supported collectives") and users reported: ``RuntimeError: SMDDP does not
support: ReduceOp`` for ``ReduceOp.AVG``, ``... _allgather_base`` for ``all_gather_into_tensor``. In AllGather mode,
under torchrun, none is refused.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]

from lightning_sagemaker.collectives.native import (
    TRAMPOLINED,
    NativeBackedGroup,
    allreduce_arguments,
    reduces_by,
    untraced,
)
from lightning_sagemaker.collectives.reduction.all_reduce import PlannedAllReduce
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.smddp_modes import NEWEST, SmddpEngines, job_engines

if TYPE_CHECKING:
    from lightning_sagemaker._types import AllreduceOptions, BackendOptions
    from lightning_sagemaker.collectives.native import Tensors


STRICT_SWITCH = "LIGHTNING_SAGEMAKER_SMDDP_STRICT"
"""Environment variable: ``0`` allows collectives that gloo and nccl support and SMDDP does not."""

SUPPORTED_OPERATIONS = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX)

REFUSED = {
    "_allgather_base": "_allgather_base",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "allgather_coalesced": "allgather_coalesced",
    "allgather_into_tensor_coalesced": "allgather_into_tensor_coalesced",
    "allreduce_coalesced": "allreduce_coalesced",
    "alltoall": "alltoall",
    "alltoall_base": "alltoall_base",
    "gather": "gather",
    "gather_into_tensor": "gather",
    "gather_single": "gather",
    "recv": "recv",
    "recvAnysource": "recv",
    "recv_anysource": "recv",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "scatter": "scatter",
    "send": "send",
}
"""Method of torch's process group -> the name in SMDDP's message, which is the one that torch had in SMDDP's time.

All but SMDDP 1.4's five: all_reduce, broadcast, reduce, all_gather and barrier. Refused in AllReduce mode.
"""

GATHERS = ("_allgather_base", "all_gather_single")
"""Methods that are allowed where SMDDP's AllGather is in force: those of ``all_gather_into_tensor``."""


_ALL_GATHER_OBJECT = inspect.unwrap(dist.all_gather_object).__code__


def is_strict() -> bool:
    """Whether the shim refuses what SMDDP refuses (default)."""
    return os.environ.get(STRICT_SWITCH, "1") != "0"


class SMDDPProcessGroup(NativeBackedGroup):
    """A process group with SMDDP's collectives and refusals.

    Args:
        store: Rendezvous store.
        rank: Rank of this process.
        size: Number of processes.
        timeout: Maximum duration of a collective.
        engines: SMDDP's mode, which decides what is refused; AllReduce mode when None.
        all_reduce: Reduces large tensors; gloo or nccl when None.

    """

    backend_name = "smddp"

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        engines: SmddpEngines | None = None,
        all_reduce: PlannedAllReduce | None = None,
    ) -> None:
        super().__init__(store, rank, size, timeout)
        self._strict = is_strict()
        self._all_reduce = all_reduce if size > 1 else None
        self._refuses_others = self._strict and (engines is None or engines.other_collectives.refused)
        self.gathers = False
        """Whether SMDDP's AllGather is in force, as in sharded data parallel jobs."""
        self.gathered = 0
        """Number of such all-gathers so far."""

    @untraced
    def allreduce(self, tensors: Tensors, opts: AllreduceOptions | dist.ReduceOp | None = None) -> dist.Work:  # type: ignore[override]
        """All-reduce in place.

        Args:
            tensors: A list with one tensor, or the tensor.
            opts: ``AllreduceOptions``, a reduce operation, or None for the sum.

        Raises:
            RuntimeError: In AllReduce mode, if the operation is not sum, minimum or maximum.

        """
        tensors, opts = allreduce_arguments(tensors, opts)
        # The operation compares equal to a constant from the left only, so `in` would not find it.
        if not any(reduces_by(opts, supported) for supported in SUPPORTED_OPERATIONS):
            self.refuse("ReduceOp", self._refuses_others)
        return super().allreduce(tensors, opts)

    @untraced
    def add_up(self, tensors: list[torch.Tensor], opts: AllreduceOptions) -> dist.Work:
        """Sum over all processes, in place, by the reduction that environment variables select.

        Args:
            tensors: A list with one tensor.
            opts: ``AllreduceOptions`` of a sum.

        """
        if self._all_reduce is None or not self._all_reduce.supports(tensors[0]):
            return super().add_up(tensors, opts)

        def finish(done: torch.futures.Future[torch.Tensor]) -> list[torch.Tensor]:
            done.value()  # re-raises an error of the reduction
            return tensors

        work: dist.Work = _create_work_from_future(self._all_reduce.start(tensors[0]).then(finish))
        return work

    @untraced
    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for every process.

        Args:
            opts: ``BarrierOptions``.

        Raises:
            RuntimeError: If device ids are given.

        """
        if opts is not None and opts.device_ids:
            self.refuse("device_ids", self._strict)
        return self.native.barrier() if opts is None else self.native.barrier(opts)

    @staticmethod
    def refuse(what: str, refused: bool) -> None:
        """Refuse as SMDDP does.

        Args:
            what: The name in SMDDP's message.
            refused: Whether to refuse.

        Raises:
            RuntimeError: If ``refused``.

        """
        if refused:
            raise RuntimeError(f"SMDDP does not support: {what}")


def _refused(name: str) -> Callable[..., object]:
    @untraced
    def collective(self: SMDDPProcessGroup, *args: object, **kwargs: object) -> object:
        taken = self.gathers and name in GATHERS
        self.gathered += taken
        if not taken and (name != "all_gather_single" or not _gathers_objects()):
            self.refuse(REFUSED[name], self._refuses_others)
        if name in TRAMPOLINED:
            return getattr(NativeBackedGroup, name)(self, *args, **kwargs)
        return getattr(self.native, name)(*args, **kwargs)

    collective.__name__ = name
    return collective


def _gathers_objects() -> bool:
    """Whether the caller is ``all_gather_object``, which used ``all_gather`` in SMDDP's time, up to torch 2.14."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _ALL_GATHER_OBJECT:
        frame = frame.f_back
    return frame is not None


for _name in REFUSED:
    if hasattr(NativeBackedGroup, _name):
        setattr(SMDDPProcessGroup, _name, _refused(_name))


def create(options: BackendOptions, _: object) -> SMDDPProcessGroup:
    """Make the group for ``init_process_group(backend="smddp")``; called by torch.

    Args:
        options: torch's ``_DistributedBackendOptions``.

    Raises:
        RuntimeError: If the group is a sub-group, which SMDDP does not support in AllReduce mode.
        SageMakerJobError: If an environment variable of SMDDP or of the reduction is malformed.

    """
    all_reduce = None if options.global_ranks_in_group else PlannedAllReduce.from_environment(options.timeout)
    job = SageMakerJob.from_environment()
    engines = job_engines(dataclasses.replace(job, smddp_version=job.smddp_version or NEWEST))
    if options.global_ranks_in_group:  # torch names the members of every group but the default one
        SMDDPProcessGroup.refuse("new_group", is_strict() and engines.sub_groups.refused)
    return SMDDPProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout, engines, all_reduce
    )
