# SPDX-License-Identifier: Apache-2.0
"""The number of CPU cores of this process."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Cores that this process may run on, fewer than the machine's in a container; as ``os.process_cpu_count`` of 3.13."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
