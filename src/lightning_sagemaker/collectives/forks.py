# SPDX-License-Identifier: Apache-2.0
"""Forking safely with gloo's threads: none of them is in the interpreter at the fork, and the child frees no group.

A tensor whose last Python reference is dropped while a collective uses it is freed by gloo's thread, which creates a
Python thread state for that, under a lock of the interpreter. Up to Python 3.11 a process that is forked at that
moment, such as a loader's worker, takes the same lock before the interpreter has reinitialized it
(``_PyThreadState_DeleteExcept``, called by ``PyOS_AfterFork_Child``), and deadlocks; Python 3.12 reinitializes it
first. So each fork waits until all other threads sleep, as gloo's do after a collective, and then until the lock is
free. The remaining case is an asynchronous collective whose tensor Python has released, and that completes between the
check and the fork.

A process group that is garbage at the fork, such as one that a failed collective's traceback refers to, would be freed by
the child's garbage collector too, which would wait for threads that only the parent has. So a child does not collect what it
has inherited, in any version of Python.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from functools import cache

_IS_AFFECTED = sys.version_info < (3, 12) and sys.platform == "linux"
_TIME_LIMIT = 0.1
"""Time limit in seconds: a thread that computes without pause, such as one of the program's, is not waited for."""
_PAUSE = 0.0002
_TASKS = "/proc/self/task"


@cache
def guard() -> None:
    """Make forks of this process safe from here on."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=gc.freeze)
    if _IS_AFFECTED:
        os.register_at_fork(before=_settle)


def _settle() -> None:
    deadline = time.monotonic() + _TIME_LIMIT
    while _others_run() and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    sys._current_frames()  # acquires and releases the lock


def _others_run() -> bool:
    own = str(threading.get_native_id())
    try:
        return any(_runs(thread) for thread in os.listdir(_TASKS) if thread != own)
    except OSError:  # no /proc
        return False


def _runs(thread: str) -> bool:
    try:
        with open(f"{_TASKS}/{thread}/stat", "rb") as file:
            return not file.read().rpartition(b") ")[2].startswith(b"S")
    except OSError:  # the thread has ended
        return False
