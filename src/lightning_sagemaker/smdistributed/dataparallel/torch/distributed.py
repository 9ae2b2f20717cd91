# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.dataparallel.torch.distributed``: the functions of SMDDP 1.0 to 1.3, deprecated since 1.4."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, AllToAllOptions

from lightning_sagemaker.job import Launcher, SageMakerJob

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from lightning_sagemaker.smdistributed.dataparallel.torch.process_group import SMDDPProcessGroup


P = ParamSpec("P")
R = TypeVar("R")


class ReduceOp(Enum):
    """The reductions of :func:`all_reduce`; there is no product."""

    SUM = "sum"
    AVERAGE = "average"
    MIN = "min"
    MAX = "max"


_OPERATIONS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.AVERAGE: dist.ReduceOp.SUM,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
}


class group:  # AWS's name
    """Names the only group, that of all processes."""

    WORLD = object()


def _deprecated(function: Callable[P, R]) -> Callable[P, R]:
    name = function.__name__

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        warnings.warn(
            f"smdistributed.dataparallel.torch.distributed.{name} is deprecated since SMDDP 1.4.0. Import"
            " smdistributed.dataparallel.torch.torch_smddp, initialize torch.distributed with backend='smddp' and use"
            " torch.distributed.",
            DeprecationWarning,
            stacklevel=2,
        )
        return function(*args, **kwargs)

    return wrapper


@_deprecated
def is_available() -> bool:
    """Whether a launcher started this script as a distributed job; False in a plain local run."""
    return SageMakerJob.from_environment().launcher is not Launcher.NONE


@_deprecated
def init_process_group(*args: object, **kwargs: object) -> None:
    """Join the other processes. Arguments are accepted and ignored; ranks come from the launcher.

    Args:
        *args: Ignored.
        **kwargs: Ignored.

    Raises:
        RuntimeError: If no launcher started this process.

    """
    if dist.is_initialized():
        return
    import lightning_sagemaker.smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the backend

    job = SageMakerJob.from_environment()
    if job.launcher is Launcher.NONE or job.world_size is None or job.global_rank is None:
        raise RuntimeError(
            "smdistributed.dataparallel was initialized in a process that no launcher started. HINT: start the script with"
            " torchrun, mpirun or `lightning-sagemaker local`, or check is_available() first."
        )
    if job.launcher is Launcher.TORCHRUN:  # torchrun's own store may hold the port, which torch knows how to join
        dist.init_process_group("smddp")
        return
    address = job.known_address()
    address = f"[{address}]" if ":" in address else address
    method = f"tcp://{address}:{job.main_port}"
    dist.init_process_group("smddp", init_method=method, rank=job.global_rank, world_size=job.world_size)


@_deprecated
def is_initialized() -> bool:
    """Whether :func:`init_process_group` has been called."""
    return dist.is_initialized()


@_deprecated
def get_world_size(group: object = group.WORLD) -> int:
    """Number of processes.

    Args:
        group: ``group.WORLD`` or None.

    """
    return dist.get_world_size(check_group(group))


@_deprecated
def get_rank(group: object = group.WORLD) -> int:
    """Global rank of this process.

    Args:
        group: ``group.WORLD`` or None.

    """
    return dist.get_rank(check_group(group))


@_deprecated
def get_local_rank() -> int:
    """Rank of this process on its host."""
    return SageMakerJob.from_environment().local_rank or 0


@_deprecated
def all_reduce(
    tensor: torch.Tensor, op: ReduceOp = ReduceOp.SUM, group: object = group.WORLD, async_op: bool = False
) -> dist.Work | None:
    """Reduce ``tensor`` over all processes, in place.

    Args:
        tensor: Tensor of any shape; holds the result afterwards, on every process.
        op: The reduction.
        group: ``group.WORLD`` or None.
        async_op: Return at once with a handle to wait on.

    Raises:
        TypeError: If ``op`` is not one of this module's, such as torch's.

    """
    if not isinstance(op, ReduceOp):
        raise TypeError(
            f"smdistributed.dataparallel.torch.distributed.all_reduce(op={op!r}) was called. HINT: use"
            f" {', '.join(f'ReduceOp.{known.name}' for known in ReduceOp)} of this module."
        )
    options = AllreduceOptions()
    options.reduceOp = dist.ReduceOp(_OPERATIONS[op])
    world = _world(group)
    reduce = {ReduceOp.AVERAGE: world.average, ReduceOp.SUM: world.add_up}.get(op, world.native.allreduce)
    return _finish(reduce([tensor], options), async_op)


@_deprecated
def broadcast(
    tensor: torch.Tensor, src: int = 0, group: object = group.WORLD, async_op: bool = False
) -> dist.Work | None:
    """Send ``tensor`` of process ``src`` to all others, in place.

    Args:
        tensor: Tensor of the same shape on every process.
        src: Global rank of the sender.
        group: ``group.WORLD`` or None.
        async_op: Return at once with a handle to wait on.

    """
    work: dist.Work | None = dist.broadcast(tensor, src, check_group(group), async_op)
    return work


@_deprecated
def all_gather(
    tensor_list: list[torch.Tensor],
    tensor: torch.Tensor,
    group: object = group.WORLD,
    async_op: bool = False,
) -> dist.Work | None:
    """Collect ``tensor`` of every process in ``tensor_list``, ordered by rank.

    Args:
        tensor_list: As many tensors of ``tensor``'s shape as there are processes.
        tensor: Tensor that this process contributes.
        group: ``group.WORLD`` or None.
        async_op: Return at once with a handle to wait on.

    """
    work: dist.Work | None = dist.all_gather(tensor_list, tensor, check_group(group), async_op)
    return work


@_deprecated
def all_to_all_single(
    output_t: torch.Tensor,
    input_t: torch.Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: object = group.WORLD,
    async_op: bool = False,
) -> dist.Work | None:
    """Send the k-th part of ``input_t`` to process k, and collect the others' parts for this one.

    Args:
        output_t: Receives the parts, concatenated along the first dimension in the order of ranks.
        input_t: Tensor to send, split along the first dimension.
        output_split_sizes: Rows from each process; equal parts when None.
        input_split_sizes: Rows to each process; equal parts when None.
        group: ``group.WORLD`` or None.
        async_op: Return at once with a handle to wait on.

    """
    splits = (output_split_sizes or [], input_split_sizes or [])
    return _finish(_world(group).native.alltoall_base(output_t, input_t, *splits, AllToAllOptions()), async_op)


@_deprecated
def barrier(group: object = group.WORLD, async_op: bool = False) -> dist.Work | None:
    """Wait for every process.

    Args:
        group: ``group.WORLD`` or None.
        async_op: Return at once with a handle to wait on.

    """
    work: dist.Work | None = dist.barrier(check_group(group), async_op)
    return work


def check_group(given: object) -> ProcessGroup | None:
    """None, which is torch's default group, for any name of the only group.

    Raises:
        RuntimeError: If ``given`` is another group.

    """
    if given is not None and given is not group.WORLD and given is not dist.group.WORLD:
        raise RuntimeError("SMDDP does not support: sub-groups; pass group.WORLD or leave the group out")
    return None


def _world(given: object) -> SMDDPProcessGroup:
    """The default group. These functions did more than the later backend does, so they use its native group."""
    check_group(given)
    return cast("SMDDPProcessGroup", dist.distributed_c10d._get_default_group())


def _finish(work: dist.Work, async_op: bool) -> dist.Work | None:
    if async_op:
        return work
    work.wait()
    return None
