# SPDX-License-Identifier: Apache-2.0
"""A clean exit for processes that used gloo.

gloo's threads take the GIL to free the last tensors they worked on. Python terminates a thread that requests it during
shutdown, and the process with it: "terminate called without an active exception", after a successful training. Seen
occasionally with torch 2.13, with plain DDP as well.
"""

from __future__ import annotations

import atexit
import sys
import time

_PAUSE = 0.05
"""Seconds of sleep, in which other threads get the GIL; each needs some microseconds of it."""
_PAUSE_OF_A_GROUP = 0.01
"""The same when a process group is destroyed; shorter, as a process that runs several trainers destroys many."""

_OURS: set[str] = set()
"""Backends whose default group is destroyed here at exit, as nobody else destroys it."""


def register(backend: str | None = None) -> None:
    """Make this process exit cleanly. Idempotent; costs nothing without a process group.

    Args:
        backend: Backend whose default group is also destroyed at exit.

    """
    atexit.unregister(_end)
    atexit.register(_end)
    if backend is not None:
        _OURS.add(backend)


def let_threads_finish() -> None:
    """Release the GIL for a moment, so that gloo's threads can finish before a process group is destroyed.

    Before torch 2.8 (pytorch/pytorch#154976), gloo's group joins its threads in its destructor while it holds the GIL: if
    one of them was about to free a Python object (the function in ``future.then``, a tensor of
    ``broadcast_object_list``), the process hung.
    Seen with torch 2.5.1 within 3000 plain groups, and on a busy machine in one of five that gathered objects just before.
    """
    time.sleep(_PAUSE_OF_A_GROUP)


def _end() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    time.sleep(_PAUSE)  # also if the script has destroyed the group: a module in DDP still refers to it
    # After an error the group stays: a collective that the others never join would keep the failed process from ending.
    if distributed.is_initialized() and getattr(sys, "last_value", None) is None and distributed.get_backend() in _OURS:
        distributed.destroy_process_group()  # joins gloo's threads
