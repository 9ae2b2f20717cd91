# SPDX-License-Identifier: Apache-2.0
"""Returns freed memory to the kernel."""

from __future__ import annotations

import ctypes
import sys


def trim_heap() -> None:
    """Make glibc return freed memory to the kernel, also from within its heap; does nothing with other C libraries.

    Once a large tensor was freed, glibc allocates others of its size from the heap, where freed memory lies between tensors
    in use.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library
        return
