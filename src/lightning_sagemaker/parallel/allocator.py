# SPDX-License-Identifier: Apache-2.0
"""Memory that was freed goes back to the kernel."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Let glibc give back what it keeps of freed memory, within the heap too; elsewhere nothing happens.

    After the first large tensor is freed it takes others of the size from its heap, where freed ones lie between those
    that are in use.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library
        return
