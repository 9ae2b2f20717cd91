# SPDX-License-Identifier: Apache-2.0
"""``tsm.init``: the parallel layout, its process groups, and FSDP wrappers that follow it."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from lightning_sagemaker.collectives import clean_exit
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.job.source import is_true
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees
from lightning_sagemaker.parallel.sharding import DP_REPLICATE, DP_SHARD, make_mesh
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import init_process_group
from lightning_sagemaker.torch_sagemaker.optimizer_states import own_parts
from lightning_sagemaker.torch_sagemaker.state_handler import state

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from lightning_sagemaker._types import Checkpoint, StateDict


_READ_BY_SCRIPTS = "sm_activation_offloading"
"""Key that has no effect on the library's own work: the script asks for it, to wrap its model in ``offload_wrapper``."""
_ORIGINAL = FullyShardedDataParallel.__init__
_SIGNATURE = inspect.signature(_ORIGINAL)
_TO_LOAD = FullyShardedDataParallel.optim_state_dict_to_load


def init(config: str | Mapping[str, object] | None = None) -> None:
    """Set up the parallel layout, which every FSDP wrapper built afterwards follows. Collective over all processes.

    Args:
        config: A dictionary, or the path of a JSON file; overridden by the job's ``mp_parameters``, as AWS documents.

    Raises:
        ParallelConfigError: If the configuration is invalid; raised before any process group is created.

    """
    if is_initialized():
        return
    job = SageMakerJob.from_environment()
    given = json.loads(Path(config).read_text()) if isinstance(config, str) else dict(config or {})
    parameters = {**given, **job.model_parallel_parameters}
    degrees, notes = ParallelDegrees.from_parameters(parameters)
    if degrees.pipeline > 1:
        raise ParallelConfigError(
            f"partitions={degrees.pipeline} was set, but torch.sagemaker has no pipeline. HINT: use"
            " smdistributed.modelparallel.torch, or Trainer(strategy='smp')."
        )
    degrees.shards(dist.get_world_size() if dist.is_initialized() else job.world_size or 1)
    clean_exit.register()
    if not dist.is_initialized():
        init_process_group(job)
        clean_exit.register(dist.get_backend())  # scripts do not always destroy what they have not made
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = make_mesh(degrees, dist.get_world_size(), device)
    state.set(degrees, mesh, _without_single(mesh), _cpu_groups(mesh))
    offloads = parameters.get(_READ_BY_SCRIPTS)
    state.sm_activation_offloading = True if offloads is None else is_true(offloads)
    FullyShardedDataParallel.__init__ = _follow_layout  # type: ignore[method-assign]
    FullyShardedDataParallel.optim_state_dict_to_load = staticmethod(_to_load)  # type: ignore[method-assign]
    if dist.get_rank() == 0:
        for note in notes:
            if _READ_BY_SCRIPTS not in note:
                print(note)


def is_initialized() -> bool:
    """Whether :func:`init` was called."""
    return state.mesh is not None


def _without_single(mesh: DeviceMesh) -> DeviceMesh:
    """FSDP's mesh, without dimensions of one process. Collective.

    Of a mesh that is a part of a larger one, FSDP shards states along the first dimension of the latter.
    """
    assert mesh.mesh_dim_names is not None
    sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
    kept = {name: size for name, size in sizes.items() if size > 1} or {DP_SHARD: 1}
    if kept == sizes:
        return mesh
    return DeviceMesh(mesh.device_type, mesh.mesh.reshape(*kept.values()), mesh_dim_names=tuple(kept))


def _cpu_groups(mesh: DeviceMesh) -> dict[tuple[int, ...], dist.ProcessGroup]:
    """This process's gloo groups of shards and of replicas, by their ranks: some of them write a checkpoint. Collective."""
    found = {}
    for dimension in (0, 1):
        for members in mesh.mesh.movedim(dimension, -1).reshape(-1, mesh.size(dimension)).tolist():
            if 1 < len(members) < mesh.size():
                group = dist.new_group(members, backend="gloo")
                if dist.get_rank() in members:
                    found[tuple(members)] = group
    return found


@functools.wraps(_ORIGINAL)
def _follow_layout(
    self: FullyShardedDataParallel,
    *args: object,
    post_param_init_fn: Callable[[nn.Module], object] | None = None,
    **kwargs: object,
) -> None:
    """FSDP's constructor, with the groups of the job unless the script passes its own."""
    arguments = _SIGNATURE.bind(self, *args, **kwargs).arguments
    if is_initialized() and arguments.get("process_group") is None and arguments.get("device_mesh") is None:
        arguments |= _layout(arguments.get("sharding_strategy"))
    _ORIGINAL(**arguments)
    if post_param_init_fn is not None:
        post_param_init_fn(self.module)


@functools.wraps(_TO_LOAD)
def _to_load(model: nn.Module, optim: Optimizer, optim_state_dict: Checkpoint, *args: Any, **kwargs: Any) -> Checkpoint:
    """FSDP's function, after reducing the states of tensor parallel matrices to this rank's shards."""
    return _TO_LOAD(model, optim, own_parts(optim_state_dict), *args, **kwargs)


def _layout(asked: ShardingStrategy | None) -> StateDict:
    """FSDP's mesh and sharding strategy, by ``hybrid_shard_degree``."""
    mesh, degree, tensor = state.fsdp_mesh, state.hybrid_shard_degree, state.tensor_parallel_degree
    assert mesh is not None
    if degree == 0 and tensor == 1:  # as documented: the script's own strategy, untouched
        shards_all = asked in (None, ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP)
        return {"device_mesh": mesh[DP_SHARD]} if shards_all else {}  # with a mesh, shards are DTensors
    world_size = dist.get_world_size()
    copies = world_size // tensor
    shards = degree or copies
    if shards == 1 and tensor > 1:
        raise ParallelConfigError(
            f"FullyShardedDataParallel was built with tensor_parallel_degree={tensor} and a shard degree of 1"
            f" (hybrid_shard_degree={degree}, {world_size} processes), but it does not train tensor parallel matrices that"
            " it does not shard. HINT: let at least two processes shard them, by more processes or another"
            " hybrid_shard_degree, or train with Lightning's Trainer(strategy='smp')."
        )
    if shards == copies:
        is_hybrid = asked in (None, ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
        strategy = ShardingStrategy.FULL_SHARD if is_hybrid else asked
        return {"device_mesh": mesh[DP_SHARD], "sharding_strategy": strategy}
    if shards == 1:
        return {"device_mesh": mesh[DP_REPLICATE], "sharding_strategy": ShardingStrategy.NO_SHARD}
    zero2 = ShardingStrategy._HYBRID_SHARD_ZERO2
    strategy = zero2 if asked is zero2 else ShardingStrategy.HYBRID_SHARD
    return {"device_mesh": mesh[DP_REPLICATE, DP_SHARD], "sharding_strategy": strategy}
