# SPDX-License-Identifier: Apache-2.0
"""Shares the matrices and shards the parameters of an unchanged module: DTensor and FSDP2 on one device mesh."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from lightning_sagemaker.parallel.activations import save_memory
from lightning_sagemaker.parallel.blocks import find_blocks
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.plans import COLUMNS, count_own_heads, tensor_plan

REPLICAS, SHARDS, TENSOR = "replicas", "shards", "tensor"
"""Dimensions of the mesh: copies, who shards the parameters of a copy, who shares its matrices."""


def shard_module(
    root: nn.Module, mesh: DeviceMesh, methods: Iterable[str], recompute: bool = False, offload: bool = False
) -> None:
    """Share the matrices of ``root`` over the mesh's last dimension and shard its parameters over the second.

    Each block of the model is gathered and freed as a whole; what is not in a block is one more unit, which is there while
    one of ``methods`` runs.

    Args:
        root: The module, whole and equal on all processes.
        mesh: With the dimensions :data:`REPLICAS`, :data:`SHARDS` and :data:`TENSOR`.
        methods: Of ``root``, which are called from outside.
        recompute: Blocks keep their inputs only for the backward pass, in which they run again.
        offload: What blocks keep for the backward pass is kept in the host's memory.

    Raises:
        ParallelConfigError: If there is no plan for the matrices.

    """
    degree = mesh[TENSOR].size()
    if degree > 1:
        styles: dict[str, ParallelStyle] = {
            path: ColwiseParallel() if style == COLUMNS else RowwiseParallel()
            for path, style in tensor_plan(root, degree).items()
        }
        parallelize_module(root, mesh[TENSOR], styles)
        count_own_heads(root, styles, degree)
    data = mesh[REPLICAS, SHARDS]
    blocks = _blocks(root)
    if (recompute or offload) and not blocks:
        raise ParallelConfigError(
            f"activation_checkpointing or offload_activations was set, but {type(root).__name__} has no list of different"
            " blocks. HINT: set neither, or use the model's own gradient_checkpointing_enable()."
        )
    save_memory(blocks, recompute, offload, mesh.device_type == "cuda")
    for unit in (*blocks, root):
        fully_shard(unit, mesh=data)
    for method in methods:
        register_fsdp_forward_method(root, method)


def _blocks(root: nn.Module) -> Sequence[nn.Module]:
    try:
        return find_blocks(root).modules
    except ParallelConfigError:  # ALBERT's one block, or no list of blocks: the whole is one unit
        return ()


@torch.no_grad()
def clip_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale gradients so that their norm over all processes is at most ``max_norm``; the norm before. Collective.

    torch's own refuses parameters of different meshes, which matrices that are shared and the rest are.
    """
    by_mesh: dict[Any, list[Tensor]] = defaultdict(list)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for gradient in gradients:
        key = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None
        by_mesh[key].append(gradient)
    squares = []
    for group in by_mesh.values():
        norm = torch.nn.utils.get_total_norm(group)
        squares.append((norm.full_tensor() if isinstance(norm, DTensor) else norm).float() ** 2)
    total = torch.stack(squares).sum().sqrt()
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        local.mul_(factor.to(local.dtype))
    return total
