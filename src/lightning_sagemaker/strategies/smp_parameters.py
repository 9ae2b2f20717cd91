# SPDX-License-Identifier: Apache-2.0
"""Where ``strategy="smp"`` takes its layout from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees


def degrees_of(
    job: SageMakerJob, parameters: Mapping[str, Any] | None, degrees: ParallelDegrees | None
) -> tuple[ParallelDegrees, list[str]]:
    """The layout that ``strategy="smp"`` follows, and a line for each parameter without effect.

    Args:
        job: The job as read.
        parameters: ``mp_parameters`` from Python; those of the job if None.
        degrees: Goes before both.

    Raises:
        ParallelConfigError: If there are none, or this version cannot meet them.

    """
    given = job.model_parallel_parameters if parameters is None else parameters
    if degrees is None and not given:
        raise ParallelConfigError(
            "strategy='smp' was chosen, but neither the job nor the strategy says how to divide the model. HINT: set"
            " mp_parameters in the job, or pass SMPStrategy(parameters={'partitions': 2, 'microbatches': 4, 'ddp': True})."
        )
    found, notes = ParallelDegrees.from_parameters(given) if degrees is None else (degrees, [])
    if found.tensor > 1:
        raise ParallelConfigError(
            f"tensor={found.tensor} was set, but matrices are not shared among processes in this version. HINT: use"
            " partitions."
        )
    return found, notes
