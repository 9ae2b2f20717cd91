# SPDX-License-Identifier: Apache-2.0
"""Prepares optimizer states of tensor parallel matrices to be loaded by FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch.distributed.tensor import DTensor, Replicate

from lightning_sagemaker.parallel.sharding import TP

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint


def own_parts(states: Checkpoint) -> Checkpoint:
    """``states`` with this rank's shards of tensor parallel matrices.

    ``FSDP.optim_state_dict`` returns DTensors over both mesh dimensions, but ``optim_state_dict_to_load`` (torch 2.13)
    gathers both, and then applies FSDP's indices in this rank's tensor parallel shard to the full tensor, which selects
    wrong elements.

    Args:
        states: Optimizer state dict, whose ``state`` has name of a parameter -> its states.

    """
    changed = {
        name: {key: _own_part(value) for key, value in entry.items()} if isinstance(entry, dict) else entry
        for name, entry in states.get("state", {}).items()
    }
    return {**states, "state": changed}


def _own_part(value: object) -> object:
    if not isinstance(value, DTensor) or not value.placements[-1].is_shard():
        return value
    if (value.device_mesh.mesh_dim_names or ("",))[-1] != TP:
        return value
    *others, last = value.placements
    there = cast("DTensor", value.to(value.device_mesh.device_type))  # nccl does not send FSDP's copy on the CPU
    return there.redistribute(placements=[*(Replicate() for _ in others), last]).to_local().to(value.device)
