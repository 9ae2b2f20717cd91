# SPDX-License-Identifier: Apache-2.0
"""``tsm.transform``: tensor parallelism for a model of transformers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from lightning_sagemaker.collectives.agreement import of_all
from lightning_sagemaker.collectives.devices import broadcast
from lightning_sagemaker.parallel.blocks import find_blocks
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.sharding import TP, apply_tensor_parallel
from lightning_sagemaker.torch_sagemaker.state_handler import state
from lightning_sagemaker.torch_sagemaker.tensor_parallel.transformer import mark


def transform(
    model: nn.Module,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    config: object = None,
    load_state_dict_from_rank0: bool = False,
    cp_comm_type: str = "p2p",
) -> nn.Module:
    """Shard the matrices of ``model`` across ``tensor_parallel_degree`` processes, in place. Collective.

    The layers stay transformers' own, so names and checkpoints do not change.

    Args:
        model: Complete model of transformers; equal on all processes unless ``load_state_dict_from_rank0``.
        device: Device to move the model to first.
        dtype: Dtype to convert the model to first.
        config: Configuration of a mixture of experts; refused.
        load_state_dict_from_rank0: Whether to send the weights of the first process to the others.
        cp_comm_type: Without effect.

    Raises:
        ParallelConfigError: If there is no plan for the model, ``config`` is set, or weights to send are on ``meta``.

    """
    if config is not None:
        raise ParallelConfigError(
            "tsm.transform(config=MoEConfig(...)) was called, but there is no expert parallelism here. HINT: leave"
            " config out."
        )
    if device is not None or dtype is not None:
        model.to(device=device, dtype=dtype)
    if load_state_dict_from_rank0:
        _send_weights(model)
    if state.tensor_parallel_degree == 1:
        return model
    assert state.mesh is not None
    state.shared.update(apply_tensor_parallel(model, state.mesh[TP]))
    mark(find_blocks(model).modules)
    return model


@torch.no_grad()
def _send_weights(model: nn.Module) -> None:
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    empty = next((name for name, tensor in tensors.items() if tensor.is_meta), None)
    if any(names := of_all(empty, dist.get_world_size())):  # known on all ranks, or rank 0 would wait for the others
        raise ParallelConfigError(
            f"load_state_dict_from_rank0 was set, but {next(filter(None, names))} is on the meta device. HINT: call"
            " model.to_empty(device='cpu') on the other ranks."
        )
    for tensor in tensors.values():
        broadcast(tensor.data, 0)
