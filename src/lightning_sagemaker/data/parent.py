# SPDX-License-Identifier: Apache-2.0
"""A process that another one started ends when that is killed; imports no torch."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """Called in a process that ``multiprocessing`` started: from now on it ends at once when its parent does.

    Without it a pool's processes wait for work forever, or finish their task while the program is restarted.
    """
    threading.Thread(target=_watch, name="parent-watch", daemon=True).start()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
