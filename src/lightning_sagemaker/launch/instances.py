# SPDX-License-Identifier: Apache-2.0
"""What SageMaker's instance types have in them.

Sources, read November 2026: ``instance_gpu_info.json`` of the SageMaker SDK (GPUs), AWS's EC2 pages (vCPUs, network,
EFA).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lightning_sagemaker.launch.errors import LaunchError, suggestion

_NAME = re.compile(r"ml\.[a-z][a-z0-9-]*\.([0-9]*xlarge|large|medium)")


@dataclass(frozen=True)
class Instance:
    """One instance type.

    Attributes:
        name: As in ``instance_type=``.
        gpus: Number of GPUs; 0 for processors only.
        gpu: Model of GPU.
        gpu_memory: GiB of each GPU.
        cpus: vCPUs.
        network: Gbit/s to other hosts.

    """

    name: str
    gpus: int
    gpu: str
    gpu_memory: int
    cpus: int
    network: float


def _rows() -> dict[str, Instance]:
    rows = {}
    for line in _TABLE.strip().splitlines():
        name, gpus, gpu, memory, cpus, network = line.split()
        rows[f"ml.{name}"] = Instance(f"ml.{name}", int(gpus), gpu.strip("-"), int(memory), int(cpus), float(network))
    return rows


# Name, GPUs, model, GiB each, vCPUs, Gbit/s (up to, where AWS says so).
_TABLE = """
m5.large 0 - 0 2 10
m5.xlarge 0 - 0 4 10
m5.2xlarge 0 - 0 8 10
m5.4xlarge 0 - 0 16 10
m5.12xlarge 0 - 0 48 12
m5.24xlarge 0 - 0 96 25
c5.xlarge 0 - 0 4 10
c5.2xlarge 0 - 0 8 10
c5.4xlarge 0 - 0 16 10
c5.9xlarge 0 - 0 36 12
c5.18xlarge 0 - 0 72 25
g4dn.xlarge 1 T4 16 4 25
g4dn.2xlarge 1 T4 16 8 25
g4dn.4xlarge 1 T4 16 16 25
g4dn.8xlarge 1 T4 16 32 50
g4dn.12xlarge 4 T4 16 48 50
g4dn.16xlarge 1 T4 16 64 50
g5.xlarge 1 A10G 24 4 10
g5.2xlarge 1 A10G 24 8 10
g5.4xlarge 1 A10G 24 16 25
g5.8xlarge 1 A10G 24 32 25
g5.12xlarge 4 A10G 24 48 40
g5.16xlarge 1 A10G 24 64 25
g5.24xlarge 4 A10G 24 96 50
g5.48xlarge 8 A10G 24 192 100
g6.xlarge 1 L4 24 4 10
g6.2xlarge 1 L4 24 8 10
g6.4xlarge 1 L4 24 16 25
g6.12xlarge 4 L4 24 48 40
g6.24xlarge 4 L4 24 96 50
g6.48xlarge 8 L4 24 192 100
p3.2xlarge 1 V100 16 8 10
p3.8xlarge 4 V100 16 32 10
p3.16xlarge 8 V100 16 64 25
p3dn.24xlarge 8 V100 32 96 100
p4d.24xlarge 8 A100 40 96 400
p4de.24xlarge 8 A100 80 96 400
p5.48xlarge 8 H100 80 192 3200
p5e.48xlarge 8 H200 141 192 3200
p5en.48xlarge 8 H200 141 192 3200
trn1.32xlarge 0 - 0 128 800
"""

INSTANCES = _rows()
"""Name -> what is known of it. SageMaker has more; one that is not here is accepted with a remark."""


def find_instance(name: str) -> Instance | None:
    """What is known of an instance type; None if it has the form of one but is not in the table.

    Raises:
        LaunchError: If ``name`` is no instance type.

    """
    if name in INSTANCES:
        return INSTANCES[name]
    if not _NAME.fullmatch(name):
        raise LaunchError(
            f"instance_type={name!r} is no instance type of SageMaker. HINT: {suggestion(name, INSTANCES)}"
        )
    return None
