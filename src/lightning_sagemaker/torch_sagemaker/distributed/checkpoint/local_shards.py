# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of processes that do not have all shards: each group of replicas writes those that it has."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from lightning_sagemaker._compat.pytree import tree_map_only
from lightning_sagemaker.torch_sagemaker.distributed.checkpoint.state_dict_utils import LocalState

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from lightning_sagemaker._types import StateDict


def as_saved(state: StateDict, group: ProcessGroup | None, replaced: dict[int, DTensor] | None = None) -> StateDict:
    """``state`` with this process's shards, as tensors of their own, in the place of tensors that a group cannot complete.

    Args:
        state: Tensors by name, sharded or not.
        group: Process group that writes or reads them; all processes if None.
        replaced: Takes what was replaced: id of the new tensor, which has the same memory -> tensor.

    """
    ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)

    def change(tensor: DTensor) -> Tensor:
        if _has_all(tensor, ranks):
            return tensor
        local = tensor.to_local()
        if replaced is not None:
            replaced[id(local)] = tensor
        return local

    plain = {name: dict(part) if isinstance(part, LocalState) else part for name, part in state.items()}
    changed: StateDict = tree_map_only(DTensor, change, plain)
    return changed


def _has_all(tensor: DTensor, ranks: Collection[int]) -> bool:
    """Whether these ranks have all shards of a tensor."""
    mesh = tensor.device_mesh
    sharded = [dimension for dimension, placement in enumerate(tensor.placements) if placement.is_shard()]
    places = {
        tuple(place[dimension] for dimension in sharded)
        for rank in ranks
        for place in (mesh.mesh == rank).nonzero().tolist()
    }
    count = 1
    for dimension in sharded:
        count *= mesh.size(dimension)
    return len(places) == count
