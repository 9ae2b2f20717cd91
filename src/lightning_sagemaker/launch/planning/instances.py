# SPDX-License-Identifier: Apache-2.0
"""What SageMaker's instance types have in them, from the table ``data/instances.json``, which names its sources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from lightning_sagemaker.errors import LaunchError, suggestion

_NEURON = ("Trainium", "Trainium2", "Inferentia", "Inferentia2")


@dataclass(frozen=True)
class Instance:
    """One instance type.

    Attributes:
        name: As in ``instance_type=``.
        cpus: vCPUs.
        memory: GiB of the host.
        gpus: Number of GPUs; 0 for processors only.
        gpu: Model of GPU.
        gpu_memory: GiB of each GPU, as the driver reports it.
        network: Gbit/s to other hosts, at most.
        efa: Whether there is an Elastic Fabric Adapter.

    """

    name: str
    cpus: int
    memory: int
    gpus: int
    gpu: str
    gpu_memory: int
    network: float
    efa: bool


def find_instance(name: str) -> Instance:
    """What is known of an instance type.

    Raises:
        LaunchError: If ``name`` is none of SageMaker's training instances, or has AWS's own accelerators.

    """
    found = INSTANCES.get(name)
    if found is None:
        raise LaunchError(
            f"instance_type={name!r} is no training instance of SageMaker ({instance_table_date()}). HINT:"
            f" {suggestion(name, INSTANCES)}"
        )
    if found.gpu in _NEURON:
        raise LaunchError(
            f"{name} has {found.gpus} {found.gpu}, for which torch needs AWS's Neuron SDK. HINT: take an instance with GPUs;"
            " this package trains with CUDA, or on processors."
        )
    return found


def instance_table_date() -> str:
    """When the table was made, and from what."""
    table = _table()
    return f"{table['date']}, {table['source']}"


@cache
def _table() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((resources.files(__package__) / "data" / "instances.json").read_text())
    return content


INSTANCES = {name: Instance(name, *facts) for name, facts in _table()["instances"].items()}
"""Name -> what is in it, of every type that CreateTrainingJob takes."""
