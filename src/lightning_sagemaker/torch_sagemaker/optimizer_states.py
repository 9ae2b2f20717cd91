# SPDX-License-Identifier: Apache-2.0
"""Optimizer states of tensor parallel matrices on their way into FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor, Replicate

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint


def own_parts(states: Checkpoint) -> Checkpoint:
    """``states`` with what belongs to this process of the processes that share a matrix.

    ``FSDP.optim_state_dict`` gives DTensors over both dimensions, but ``optim_state_dict_to_load`` (torch 2.13) gathers
    both and then takes the numbers that this process has of its own part: other ones than these.

    Args:
        states: With ``state``, name of a parameter -> its states.

    """
    changed = {
        name: {key: _own_part(value) for key, value in entry.items()} if isinstance(entry, dict) else entry
        for name, entry in states.get("state", {}).items()
    }
    return {**states, "state": changed}


def _own_part(value: object) -> object:
    if not isinstance(value, DTensor) or not value.placements[-1].is_shard():
        return value
    *others, last = value.placements
    return value.redistribute(placements=[*(Replicate() for _ in others), last]).to_local()
