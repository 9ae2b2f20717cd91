# SPDX-License-Identifier: Apache-2.0
"""Speed without changing results: fewer operations, settings of the allocator, the number of loader workers."""

from __future__ import annotations

import ctypes
import os
import sys

from torch import nn

from lightning_sagemaker.cores import available_cores

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Numbers of the settings in glibc's ``malloc.h``."""


def tune_allocator() -> bool:
    """Let glibc keep freed memory instead of returning it to the kernel; returns whether that was possible.

    Training steps free and allocate the same large tensors again and again. By default each is mapped again, and the
    kernel must zero its pages. On a GPU the effect is small; on a CPU a step of ALBERT-base takes two thirds of the
    time. ``MALLOC_*`` and ``LD_PRELOAD`` set by the user take precedence.
    """
    if not sys.platform.startswith("linux") or any(name.startswith(("MALLOC_", "LD_PRELOAD")) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, -1) and mallopt(_M_MMAP_MAX, 0))


def num_workers(processes_on_host: int, on_gpu: bool) -> tuple[int, str]:
    """Number of loader processes that each training process starts with, and the reason."""
    if not on_gpu:
        return 0, "CPU training needs all cores"
    return cores_of_each(processes_on_host), f"{available_cores()} CPU cores for {processes_on_host} training processes"


def cores_of_each(processes_on_host: int) -> int:
    """CPU cores for each training process, at least one."""
    return max(1, available_cores() // processes_on_host)


def fuse(model: nn.Module) -> int:
    """Compute the same function in fewer operations; returns the number of modules that were changed.

    The tanh approximation of GELU, which transformers writes as seven operations (``gelu_new``), becomes a single one
    of torch. (One matrix multiplication for query, key and value was measured too: it gains nothing.)

    Args:
        model: A transformers model.

    """
    found = [
        (module, name)
        for module in model.modules()
        for name, child in module.named_children()
        if type(child).__name__ == "NewGELUActivation"
    ]
    for module, name in found:
        setattr(module, name, nn.GELU(approximate="tanh"))
    return len(found)
