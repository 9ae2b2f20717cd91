# SPDX-License-Identifier: Apache-2.0
"""The types that describe a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SageMakerJobError(ValueError):
    """The environment contradicts itself, or an argument contradicts it; the message has the fix."""


class Distribution(str, Enum):
    """The requested distribution, as the key in SageMaker's ``distribution=``."""

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
        name: Name of the group.
        instance_type: Instance type, such as ``ml.p4d.24xlarge``; None if the container does not have it.
        hosts: Hosts of the group as listed, possibly not sorted.

    """

    name: str
    instance_type: str | None
    hosts: tuple[str, ...]
