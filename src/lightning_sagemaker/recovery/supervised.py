# SPDX-License-Identifier: Apache-2.0
"""Whether training recovers in the job when a rank dies: a supervisor started this process, or it was requested."""

from __future__ import annotations

import os

from lightning_sagemaker.recovery import wire


def is_supervised() -> bool:
    """Whether a supervisor started this process, and replaces it when it dies."""
    return os.environ.get(wire.MODE) in ("in_job", "restart") and wire.ADDRESS in os.environ


def recovers_in_job(recovery: str | None) -> bool:
    """Whether a strategy recovers in the job.

    Args:
        recovery: ``"in_job"``; ``"restart"`` to restart the job from a checkpoint; None for in the job
            if a supervisor started this process.

    Raises:
        ValueError: If ``recovery`` has another value.

    """
    if recovery not in (None, "in_job", "restart"):
        raise ValueError(f"recovery={recovery!r} was set. HINT: set 'in_job' or 'restart', or leave it out.")
    return recovery == "in_job" or (recovery is None and is_supervised() and os.environ[wire.MODE] == "in_job")
