# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.utils.process_group_utils``."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def get_global_ranks(group: Any) -> list[int]:
    """Global ranks of a process group."""
    return dist.get_process_group_ranks(group)
