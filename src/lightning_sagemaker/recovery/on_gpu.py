# SPDX-License-Identifier: Apache-2.0
"""nccl in a job that recovers: an aborted collective leaves invalid results on the GPU and raises no error."""

from __future__ import annotations

import contextlib
import os
import re

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""Environment variable of torch. With ``2`` its watchdog aborts a failed group, and does not terminate the process."""
_LEGACY = "nccl-legacy"
"""Name of torch's own nccl backend from 2.15 on, where ``nccl`` is another implementation."""


def watched(backend: str) -> str:
    """``backend`` with the nccl whose watchdog :func:`let_survive` controls, e.g. ``cpu:gloo,cuda:nccl-legacy``."""
    return re.sub(r"\bnccl\b(?!-)", _LEGACY, backend) if dist.is_backend_available(_LEGACY) else backend


def can_abort() -> bool:
    """Whether this version of torch can abort a group."""
    return hasattr(dist.ProcessGroup, "abort")


def let_survive() -> None:
    """Keep the process running when a peer is lost. Call before creating a group."""
    os.environ[_HANDLING] = "2"


def abort() -> None:
    """Abort the collectives on the GPU; the training thread destroys the groups. Thread-safe."""
    for group in list(distributed_c10d._world.pg_map):
        with contextlib.suppress(RuntimeError, KeyError):  # no nccl, or destroyed meanwhile
            backend = group._get_backend(torch.device("cuda"))
            # gloo supports GPU tensors, too, but its connections are already shut down.
            if backend.name().startswith("nccl"):
                backend.abort()


def is_whole(device: torch.device) -> bool:
    """Wait for the GPU, and return whether no collective was aborted. Collective over the default group.

    Args:
        device: Device of this process. For a CPU the result is always True, as a failed collective raises an error.

    """
    if device.type != "cuda":
        return True
    torch.cuda.current_stream(device).synchronize()  # returns after aborted collectives, too
    try:
        dist.all_reduce(torch.zeros(1, device=device))  # an aborted group raises
    except RuntimeError:
        return False
    return True
