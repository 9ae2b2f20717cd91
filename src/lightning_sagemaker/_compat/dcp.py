# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of torch's distributed format, loaded completely by one process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint


def read_full(path: Path) -> Checkpoint:
    """Everything in ``path``, with full tensors on the CPU, for any layout.

    Args:
        path: Folder.

    """
    everything: Checkpoint = {}
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    _load_state_dict(everything, dcp.FileSystemReader(path), planner=planner, no_dist=True)
    return everything
