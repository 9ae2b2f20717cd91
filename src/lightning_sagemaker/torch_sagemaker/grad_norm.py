# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.grad_norm``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._common_utils import clean_tensor_name

from lightning_sagemaker._compat.dtensor import local_of
from lightning_sagemaker.collectives.devices import device_for
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.torch_sagemaker.state_handler import state

if TYPE_CHECKING:
    from torch.distributed.fsdp import FullyShardedDataParallel


@torch.no_grad()
def clip_grad_norm_(model: FullyShardedDataParallel, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Clip the norm of the gradients of all processes; returns the norm before. Collective.

    Args:
        model: Model wrapped in FSDP; with tensor parallelism by ``use_orig_params=True``.
        max_norm: Maximum norm.
        norm_type: Type of the norm; with tensor parallelism it must be 2.

    Raises:
        ParallelConfigError: With tensor parallelism, if the model was wrapped otherwise or ``norm_type`` is not 2.

    """
    if state.tensor_parallel_degree == 1:
        norm: Tensor = model.clip_grad_norm_(max_norm, norm_type)
        return norm
    if norm_type != 2.0:
        raise ParallelConfigError(f"norm_type={norm_type} was set. HINT: with tensor_parallel_degree it must be 2.")
    own: list[Tensor] = []
    squares = [torch.zeros(()), torch.zeros(())]  # of replicated and of tensor parallel parameters
    for name, parameter in model.named_parameters():
        if "_flat_param" in name:
            raise ParallelConfigError(
                "clip_grad_norm_ was called on a model whose parameters are flat, in which tensor parallel matrices cannot"
                " be identified. HINT: wrap it with use_orig_params=True."
            )
        if parameter.grad is None:
            continue
        gradient = local_of(parameter.grad)
        own.append(gradient)
        is_shared = clean_tensor_name(name) in state.shared
        squares[is_shared] = squares[is_shared].to(gradient.device) + gradient.float().square().sum()
    device = own[0].device if own else device_for(state.tp_process_group)
    alike, shared = (square.to(device) for square in squares)
    dist.all_reduce(shared, group=state.tp_process_group)
    total = alike + shared
    if _is_sharded():
        dist.all_reduce(total, group=state.shard_process_group)
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in own:
        gradient.mul_(factor.to(gradient.dtype))
    return norm


def _is_sharded() -> bool:
    return dist.get_world_size(state.shard_process_group) > 1
