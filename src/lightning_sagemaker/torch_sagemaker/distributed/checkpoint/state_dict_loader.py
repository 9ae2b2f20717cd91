# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.distributed.checkpoint.state_dict_loader``, over ``torch.distributed.checkpoint``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner

from lightning_sagemaker._compat.pytree import tree_map_only
from lightning_sagemaker.torch_sagemaker.distributed.checkpoint.local_shards import as_saved
from lightning_sagemaker.torch_sagemaker.distributed.checkpoint.state_dict_utils import LocalState
from lightning_sagemaker.torch_sagemaker.distributed.checkpoint.storage import reader_for

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.checkpoint import LoadPlanner, StorageReader
    from torch.distributed.tensor import DTensor

    from lightning_sagemaker._types import PathLike, StateDict


def load(
    state_dict: StateDict,
    *,
    checkpoint_id: PathLike | None = None,
    storage_reader: StorageReader | None = None,
    planner: LoadPlanner | None = None,
    process_group: ProcessGroup | None = None,
    check_keys_matched: bool = True,
    coordinator_rank: int = 0,
    s3_region: str | None = None,
    s3client_config: object = None,
) -> None:
    """Fill ``state_dict`` in place from a checkpoint of any layout. Collective.

    Args:
        state_dict: State dict whose tensors are overwritten.
        checkpoint_id: Folder, or ``s3://`` URI.
        storage_reader: Reader to use instead of ``checkpoint_id``.
        planner: Load planner of torch.
        process_group: Group of the processes that load; all by default.
        check_keys_matched: Refuse a checkpoint that lacks a key of ``state_dict``.
        coordinator_rank: Without effect.
        s3_region: Region of the bucket.
        s3client_config: Without effect.

    """
    replaced: dict[int, DTensor] = {}
    content = as_saved(state_dict, process_group, replaced)
    dcp.load(
        content,
        checkpoint_id=None if storage_reader is not None else checkpoint_id,
        storage_reader=reader_for(checkpoint_id, s3_region, storage_reader),
        planner=planner or DefaultLoadPlanner(allow_partial_load=not check_keys_matched),
        process_group=process_group,
    )
    for name, part in state_dict.items():
        if isinstance(part, LocalState):
            part.apply()
        else:
            state_dict[name] = tree_map_only(Tensor, lambda value: replaced.get(id(value), value), content[name])
