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
"""Seconds in which idle Python lets other threads have the GIL, some microseconds each."""
_PAUSE_OF_A_GROUP = 0.01
"""As much at the end of one process group, of which there are many in a process that starts several trainers."""

_OURS: set[str] = set()
"""Backends whose default group nobody else destroys at the end."""


def register(backend: str | None = None) -> None:
    """Make this process exit cleanly. Idempotent; costs nothing without a process group.

    Args:
        backend: Name of a backend whose default group is to be destroyed at the end as well.

    """
    atexit.unregister(_end)
    atexit.register(_end)
    if backend is not None:
        _OURS.add(backend)


def let_threads_finish() -> None:
    """Release the GIL before gloo's threads are joined by a thread that holds it.

    Before torch 2.8 (pytorch/pytorch#154976), its process group does so in its destructor: if one of its threads was about
    to free what Python gave it (the function in ``future.then``, a tensor of ``broadcast_object_list``), the process hung.
    Seen with torch 2.5.1 within 3000 plain groups, and on a busy machine in one of five that gathered objects just before.
    """
    time.sleep(_PAUSE_OF_A_GROUP)


def _end() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    time.sleep(_PAUSE)  # also where the script has destroyed the group: a module in DDP still has it
    # After an error the group stays: a collective that the others never join would keep the failed process from ending.
    if distributed.is_initialized() and getattr(sys, "last_value", None) is None and distributed.get_backend() in _OURS:
        distributed.destroy_process_group()  # which joins its threads, as said above
