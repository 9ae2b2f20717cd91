# SPDX-License-Identifier: Apache-2.0
"""nccl in a job that recovers: a collective that was aborted leaves garbage on the GPU, and raises no error."""

from __future__ import annotations

import contextlib
import os
import re

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""Environment variable of torch; ``2``: its watchdog aborts a group that has failed, and does not end the process."""
_LEGACY = "nccl-legacy"
"""Name of torch's own nccl backend from 2.15 on, where ``nccl`` is another implementation."""


def watched(backend: str) -> str:
    """``backend`` with the nccl whose watchdog :func:`let_survive` controls, e.g. ``cpu:gloo,cuda:nccl-legacy``."""
    return re.sub(r"\bnccl\b(?!-)", _LEGACY, backend) if dist.is_backend_available(_LEGACY) else backend


def can_abort() -> bool:
    """Whether this version of torch can abort a group."""
    return hasattr(dist.ProcessGroup, "abort")


def let_survive() -> None:
    """Before a group is made: a rank whose peer is lost goes on."""
    os.environ[_HANDLING] = "2"


def abort() -> None:
    """Abort what this process waits for on the GPU, and leave the groups to the training thread; called by any thread."""
    for group in list(distributed_c10d._world.pg_map):
        with contextlib.suppress(RuntimeError, KeyError):  # without nccl; or destroyed meanwhile
            backend = group._get_backend(torch.device("cuda"))
            # Gloo takes tensors of a GPU, too, and its connections are closed already.
            if backend.name().startswith("nccl"):
                backend.abort()


def is_whole(device: torch.device) -> bool:
    """Wait for the GPU; whether none of its collectives was aborted. Collective over the default group.

    Args:
        device: Device of this process; always True for a CPU, where a collective that fails raises an error.

    """
    if device.type != "cuda":
        return True
    torch.cuda.current_stream(device).synchronize()  # an aborted collective has ended, too
    try:
        dist.all_reduce(torch.zeros(1, device=device))  # is refused by a group that was aborted
    except RuntimeError:
        return False
    return True
