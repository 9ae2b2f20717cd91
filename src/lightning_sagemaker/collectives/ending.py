# SPDX-License-Identifier: Apache-2.0
"""A quiet end for processes that used gloo.

gloo's threads take the GIL to free the last tensors they worked on. Python ends a thread that asks for it once it has begun
to shut down, and the process with it: "terminate called without an active exception", after a training that went well.
Seen now and then with torch 2.13, with plain DDP as well.
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
    """Have this process end quietly. Idempotent; costs nothing where no process group was made.

    Args:
        backend: Name of a backend whose default group is to be destroyed at the end as well.

    """
    atexit.unregister(_end)
    atexit.register(_end)
    if backend is not None:
        _OURS.add(backend)


def let_threads_finish() -> None:
    """Before gloo's threads are joined by who holds the GIL, let them have it.

    torch's process group does so in its destructor: if one of its threads was about to free what Python gave it (the
    function in ``future.then``, a tensor of ``broadcast_object_list``), the process hung for ever. Seen with torch 2.5.1
    within 3000 plain groups, not with 2.13.
    """
    time.sleep(_PAUSE_OF_A_GROUP)


def _end() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    # After an error the group stays: a collective that the others never join would keep the failed process from ending.
    time.sleep(_PAUSE)
    if getattr(sys, "last_value", None) is None and distributed.get_backend() in _OURS:
        distributed.destroy_process_group()  # which joins its threads, as said above
