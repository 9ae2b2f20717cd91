# SPDX-License-Identifier: Apache-2.0
"""Ends a child process when its parent is killed; does not import torch."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """Make this process, which ``multiprocessing`` started, end at once when its parent ends.

    Otherwise a pool's processes would wait for work forever, or finish their task while the program is restarted.
    """
    threading.Thread(target=_watch, name="parent-watch", daemon=True).start()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
