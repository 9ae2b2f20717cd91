# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism and sharded parameters for an unchanged module: DTensor and FSDP2 on one device mesh."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from lightning_sagemaker._compat.dtensor import local_of
from lightning_sagemaker._compat.sharding import (
    SHARDS_ON_CPU,
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
    total_norm,
)
from lightning_sagemaker.parallel.activations import save_memory
from lightning_sagemaker.parallel.blocks import find_units
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees
from lightning_sagemaker.parallel.full_states import take_full_states
from lightning_sagemaker.parallel.plans import COLUMNS, OF_HEADS, ROWS, count_own_heads, tensor_plan
from lightning_sagemaker.parallel.tensor import WITH_SUMS, sharded_dims, sharded_forward
from lightning_sagemaker.parallel.tensor_collectives import CopiedOnce

DP_REPLICATE, DP_SHARD, TP = "dp_replicate", "dp_shard", "tp"
"""Dimensions of the mesh: replicas, parameter shards of a replica, tensor parallel ranks."""
STYLES: Mapping[str, type[ParallelStyle]] = {COLUMNS: ColwiseParallel, ROWS: RowwiseParallel}
"""torch's styles of linear layers and embeddings."""


@dataclass(frozen=True)
class ShardOptions:
    """How parameters are sharded.

    Attributes:
        units: Classes of the modules that are gathered and freed as units; default: the repeated blocks of the model.
        mp_policy: Precision in which parameters are gathered and gradients reduced; default: their own.
        cpu_offload: Keep shards, their gradients and the optimizer's states in CPU memory.
        reshard_after_forward: Whether parameters are freed between the forward and the backward pass; default: True for
            blocks, False for the rest.

    """

    units: Collection[type[nn.Module]] | None = None
    mp_policy: MixedPrecisionPolicy | None = None
    cpu_offload: bool = False
    reshard_after_forward: bool | None = None

    def keywords(self, pin: bool) -> dict[str, Any]:
        """Arguments of ``fully_shard`` that are not its defaults.

        Args:
            pin: Whether CPU memory is pinned, for asynchronous copies from and to a GPU.

        """
        given = {
            "mp_policy": self.mp_policy,
            "offload_policy": CPUOffloadPolicy(pin_memory=pin) if self.cpu_offload else None,
            "reshard_after_forward": self.reshard_after_forward,
        }
        return {name: value for name, value in given.items() if value is not None}


def shard_module(
    root: nn.Module,
    mesh: DeviceMesh,
    methods: Iterable[str],
    *,
    recompute: bool = False,
    offload: bool = False,
    options: ShardOptions | None = None,
) -> bool:
    """Apply tensor parallelism to ``root`` over the mesh's last dimension and shard its parameters over the second.

    Each block of the model is gathered and freed as a unit; everything outside the blocks is one more unit, which is
    gathered while one of ``methods`` runs. A module that has parallelized or sharded itself is not changed.

    Args:
        root: The module, complete and equal on all processes.
        mesh: Device mesh with the dimensions :data:`DP_REPLICATE`, :data:`DP_SHARD` and :data:`TP`, or the second alone.
        methods: Names of methods of ``root`` that are called from outside.
        recompute: Activation checkpointing: blocks save only their inputs and are recomputed in the backward pass.
        offload: Offload saved activations to CPU memory.
        options: How parameters are sharded.

    Returns:
        Whether the module is a single unit, because it has no blocks.

    Raises:
        ParallelConfigError: If there is no tensor parallel plan, there are no units of the given classes, or the module
            has replicas whose gradients nobody would average.

    """
    options = options or ShardOptions()
    on_gpu = mesh.device_type == "cuda"
    own = [module for module in root.modules() if isinstance(module, FSDPModule)]
    is_own = bool(own) or any(isinstance(parameter, DTensor) for parameter in root.parameters())
    tensor = mesh[TP].size() if TP in (mesh.mesh_dim_names or ()) else 1
    if is_own and not own and mesh.size() > tensor:
        raise ParallelConfigError(
            f"{type(root).__name__} parallelizes its matrices itself but shards nothing, so the gradients of its replicas"
            ' would not be averaged. HINT: also call fully_shard(self, mesh=self.device_mesh["data_parallel"]), or start as'
            " many processes as tensor_parallel_size."
        )
    if not is_own and tensor > 1:
        apply_tensor_parallel(root, mesh[TP])
    blocks = [module for module in own if module is not root] if own else find_units(root, options.units)
    if (recompute or offload) and not blocks:
        raise ParallelConfigError(
            f"activation_checkpointing or offload_activations was set, but {type(root).__name__} has no list of distinct"
            " blocks. HINT: name their classes (auto_wrap_policy, with 'smddp_fsdp'), set neither, or use the model's own"
            " gradient_checkpointing_enable()."
        )
    save_memory(blocks, recompute, offload, on_gpu)
    if not is_own:
        data = _data_mesh(mesh)
        for unit in (*blocks, root):
            fully_shard(unit, mesh=data, **options.keywords(on_gpu))
    for method in methods:
        register_fsdp_forward_method(root, method)
    take_full_states(root)
    return not (is_own or blocks)


def _data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The dimensions over which gradients are averaged."""
    is_replicated = DP_REPLICATE in (mesh.mesh_dim_names or ()) and mesh[DP_REPLICATE].size() > 1
    return mesh[DP_REPLICATE, DP_SHARD] if is_replicated else mesh[DP_SHARD]


def check_shardable(device_type: str) -> None:
    """Raise for a device on which this version of torch cannot shard parameters.

    Raises:
        ParallelConfigError: For a CPU before torch 2.6.

    """
    if device_type == "cpu" and not SHARDS_ON_CPU:
        raise ParallelConfigError(
            f"Sharded parameters on a CPU need torch 2.6, and this is torch {torch.__version__}."
            " HINT: train on a GPU, use a newer torch, or set partitions instead of a shard degree or tensor parallelism."
        )


def apply_tensor_parallel(root: nn.Module, mesh: DeviceMesh) -> list[str]:
    """Shard the linear layers of a model with DTensor.

    Args:
        root: Module that contains a transformers model, with the same values on all processes.
        mesh: Device mesh of the tensor parallel ranks.

    Returns:
        Names of the sharded parameters.

    Raises:
        ParallelConfigError: If there is no tensor parallel plan for the model.

    """
    plan, group = tensor_plan(root, mesh.size()), mesh.get_group()
    once = CopiedOnce(group)
    for path, style in plan.items():
        module = root.get_submodule(path)
        if style in WITH_SUMS:
            module.forward = WITH_SUMS[style](root, path, group)
        elif style in STYLES and isinstance(module, (nn.Linear, nn.Embedding)):
            parallelize_module(module, mesh, STYLES[style]())  # by itself: torch 2.5 takes parts of a path for others
        else:
            module.forward = sharded_forward(module, style, once, group)
            for name, dim in sharded_dims(module, style).items():
                whole = module.get_parameter(name)
                shard = nn.Parameter(distribute_tensor(whole, mesh, [Shard(dim)]), whole.requires_grad)
                module.register_parameter(name, shard)
    count_own_heads(root, [path for path, style in plan.items() if style in OF_HEADS], mesh.size())
    return [
        name
        for name, parameter in root.named_parameters()
        if isinstance(parameter, DTensor) and parameter.placements[0].is_shard()
    ]


def make_mesh(degrees: ParallelDegrees, world_size: int, device_type: str) -> DeviceMesh:
    """Create the device mesh of replicas, parameter shards, and tensor parallel ranks.

    Collective over all processes.
    """
    shards = degrees.shards(world_size)
    places = {degrees.coordinates(rank, world_size): rank for rank in range(world_size)}
    order = sorted(places, key=lambda at: (at.replica, at.tensor))
    ranks = torch.tensor([places[at] for at in order]).reshape(-1, shards, degrees.tensor)
    return DeviceMesh(device_type, ranks, mesh_dim_names=(DP_REPLICATE, DP_SHARD, TP))


@torch.no_grad()
def clip_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale gradients so that their norm over all processes is at most ``max_norm``; returns the norm before. Collective.

    torch's own refuses parameters of different meshes, such as tensor parallel and other parameters; with a single
    mesh it is used.
    """
    parameters = list(parameters)
    by_mesh: dict[Any, list[Tensor]] = defaultdict(list)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for gradient in gradients:
        key = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None
        by_mesh[key].append(gradient)
    if len(by_mesh) == 1:
        total = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        return total.full_tensor() if isinstance(total, DTensor) else total
    squares = []
    for group in by_mesh.values():
        norm = total_norm(group)
        squares.append((norm.full_tensor() if isinstance(norm, DTensor) else norm).float() ** 2)
    total = torch.stack(squares).sum().sqrt()
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        local = local_of(gradient)
        local.mul_(factor.to(local.dtype))
    return total
