# SPDX-License-Identifier: Apache-2.0
"""The types that describe a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SageMakerJobError(ValueError):
    """The environment contradicts itself, or an argument contradicts the environment. Says how to fix it."""


class Distribution(str, Enum):
    """What the job asked for, by the key that SageMaker's ``distribution=`` uses."""

    SMDDP = "smddp"
    DDP = "ddp"
    TORCH_DISTRIBUTED = "torch_distributed"
    MPI = "mpi"
    MODEL_PARALLEL = "model_parallel"
    NONE = "none"


class Launcher(str, Enum):
    """What started this process. With ``NONE``, Lightning starts the processes of this host."""

    TORCHRUN = "torchrun"
    MPI = "mpi"
    SMDDPRUN = "smddprun"
    NONE = "none"


@dataclass(frozen=True)
class InstanceGroup:
    """One group of a heterogeneous cluster; an ordinary job has a single one.

    Attributes:
        name: Its name.
        instance_type: Such as ``ml.p4d.24xlarge``; None when the container does not say.
        hosts: Its hosts as listed, which need not be sorted.

    """

    name: str
    instance_type: str | None
    hosts: tuple[str, ...]
