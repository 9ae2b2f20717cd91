# SPDX-License-Identifier: Apache-2.0
"""Reads ``SM_*``, launchers' variables and ``/opt/ml/input/config`` once per process, for strategies and commands."""

from __future__ import annotations

from lightning_sagemaker.job.job import SMDDP_VARIABLES, SageMakerJob
from lightning_sagemaker.job.process import SPAWNED_BY_LIGHTNING
from lightning_sagemaker.job.types import Distribution, InstanceGroup, Launcher, SageMakerJobError

__all__ = [
    "SMDDP_VARIABLES",
    "SPAWNED_BY_LIGHTNING",
    "Distribution",
    "InstanceGroup",
    "Launcher",
    "SageMakerJob",
    "SageMakerJobError",
]
