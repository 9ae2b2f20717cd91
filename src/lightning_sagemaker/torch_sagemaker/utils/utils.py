# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.utils.utils``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def timeit(enabled: bool, msg: str, rank: int = 0) -> Iterator[None]:
    """Print how long the block took.

    Args:
        enabled: Whether to print.
        msg: Name of the block.
        rank: Global rank that prints.

    """
    start = time.perf_counter()
    yield
    if enabled and (not dist.is_initialized() or dist.get_rank() == rank):
        print(f"{msg}: {time.perf_counter() - start:.3f} s")
