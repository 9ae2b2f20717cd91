# SPDX-License-Identifier: Apache-2.0
"""The GPUs and CPU cores of this host."""

from __future__ import annotations

import os
from pathlib import Path

from lightning_sagemaker.job.source import Source


def count_gpus(source: Source) -> int:
    """GPUs of this host: as counted by the container, else those that the driver lists and are visible to the process."""
    counted = source.integer("SM_NUM_GPUS")
    if counted is not None:
        return source.found("num_gpus", "SM_NUM_GPUS", counted)
    visible = source.env.get("CUDA_VISIBLE_DEVICES")
    listed = driver_gpus()
    if visible is None or listed == 0:
        return source.found("num_gpus", "the NVIDIA driver", listed)
    shown = [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    return source.found("num_gpus", "CUDA_VISIBLE_DEVICES", min(listed, len(shown)))


def count_cpus(source: Source) -> int:
    """CPU cores of this host."""
    counted = source.integer("SM_NUM_CPUS", 1)
    if counted is not None:
        return source.found("num_cpus", "SM_NUM_CPUS", counted)
    return source.found("num_cpus", "the operating system", os.cpu_count() or 1)


def driver_gpus() -> int:
    """GPUs of this machine that NVIDIA's driver lists, whichever of them a process sees; 0 without the driver."""
    try:
        return len(list(Path("/proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        return 0
