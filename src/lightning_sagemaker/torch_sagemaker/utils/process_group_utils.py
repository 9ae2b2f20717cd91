# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.utils.process_group_utils``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def get_global_ranks(group: ProcessGroup | None) -> list[int]:
    """Global ranks of a process group."""
    return dist.get_process_group_ranks(group)
