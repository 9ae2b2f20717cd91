# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.distributed.checkpoint.state_dict_saver``, over ``torch.distributed.checkpoint``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from lightning_sagemaker._compat.pytree import tree_map_only
from lightning_sagemaker.torch_sagemaker.distributed.checkpoint.async_utils import AsyncCallsQueue
from lightning_sagemaker.torch_sagemaker.distributed.checkpoint.local_shards import as_saved
from lightning_sagemaker.torch_sagemaker.distributed.checkpoint.storage import writer_for
from lightning_sagemaker.torch_sagemaker.state_handler import state

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torch.distributed import ProcessGroup
    from torch.distributed.checkpoint import SavePlanner, StorageWriter

    from lightning_sagemaker._types import PathLike, StateDict


_QUEUE = AsyncCallsQueue()
_groups: dict[tuple[ProcessGroup | None, tuple[int, ...]], ProcessGroup] = {}


class PyTorchDistSaveShardedStrategy:
    """Value of ``sharded_strategy`` in scripts; without effect: only torch's format is written here."""


def async_save(
    state_dict: StateDict,
    *,
    checkpoint_id: PathLike | None = None,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    process_group: ProcessGroup | None = None,
    coordinator_rank: int = 0,
    queue: AsyncCallsQueue | None = None,
    sharded_strategy: object = None,
    wait_error_handling: bool = True,
    force_check_all_plans: bool = True,
    s3_region: str | None = None,
    s3client_config: object = None,
) -> None:
    """Copy ``state_dict`` and write the copy asynchronously. Collective.

    Waits for the previous checkpoint first, so that at most one is being written.

    Args:
        state_dict: Tensors by name, sharded or not.
        checkpoint_id: Folder, or ``s3://`` URI.
        storage_writer: Writer to use instead of ``checkpoint_id``.
        planner: Save planner of torch.
        process_group: Group of the processes that write this checkpoint, and that call; all by default. They use a gloo
            group of their own.
        coordinator_rank: Without effect: it is the first of the group.
        queue: Queue of checkpoints being written; default: that of the process.
        sharded_strategy: Without effect.
        wait_error_handling: Without effect: errors are raised when the queue is finalized.
        force_check_all_plans: Without effect.
        s3_region: Region of the bucket.
        s3client_config: Without effect.

    """
    queue = _QUEUE if queue is None else queue
    queue.maybe_finalize_async_calls(blocking=True)
    future = dcp.async_save(
        _copy_of_cpu_tensors(as_saved(state_dict, process_group)),
        checkpoint_id=None if storage_writer is not None else checkpoint_id,
        storage_writer=writer_for(checkpoint_id, s3_region, storage_writer),
        planner=planner,
        process_group=_cpu_group(process_group),
    )
    queue.schedule(cast("Future[object]", future))


def save(state_dict: StateDict, *, checkpoint_id: PathLike | None = None, **kwargs: Any) -> None:
    """As :func:`async_save`, but wait until it is written. Collective.

    Args:
        state_dict: Tensors by name, sharded or not.
        checkpoint_id: Folder, or ``s3://`` URI.
        kwargs: Arguments of :func:`async_save`.

    """
    queue = kwargs.get("queue") or _QUEUE
    async_save(state_dict, checkpoint_id=checkpoint_id, **kwargs)
    queue.maybe_finalize_async_calls(blocking=True)


def maybe_finalize_async_calls(blocking: bool = True, process_group: ProcessGroup | None = None) -> list[int]:
    """Remove finished checkpoints from the queue; returns their numbers.

    Args:
        blocking: Wait for all.
        process_group: Without effect.

    """
    return _QUEUE.maybe_finalize_async_calls(blocking, process_group)


def _copy_of_cpu_tensors(state: StateDict) -> StateDict:
    """``state`` with copies of CPU tensors: torch 2.5 copies GPU tensors only, and training would change the others."""
    copied: StateDict = tree_map_only(Tensor, _copy_on_cpu, state)
    return copied


def _copy_on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().clone() if tensor.device.type == "cpu" else tensor


def _cpu_group(given: ProcessGroup | None) -> ProcessGroup:
    """A gloo group of the same processes, so that a checkpoint's collectives do not mix with those of training.

    Those of shards and of replicas exist since ``tsm.init()``: the other processes may not take part in the checkpoint.
    """
    world = dist.group.WORLD
    ranks = tuple(dist.get_process_group_ranks(world if given is None else given))
    if ranks in state.cpu_groups:
        return state.cpu_groups[ranks]
    for key in [key for key in _groups if key[0] is not world]:
        del _groups[key]
    if (world, ranks) not in _groups:
        is_part = len(ranks) < dist.get_world_size()
        _groups[world, ranks] = dist.new_group(list(ranks), backend="gloo", use_local_synchronization=is_part)
    return _groups[world, ranks]
