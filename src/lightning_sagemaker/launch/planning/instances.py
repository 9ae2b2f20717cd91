# SPDX-License-Identifier: Apache-2.0
"""Hardware of SageMaker's instance types, from ``data/instances.json`` or a refreshed table; each names its sources."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from lightning_sagemaker.aws_types import Client
from lightning_sagemaker.errors import LaunchError, suggestion
from lightning_sagemaker.launch.aws import make_client
from lightning_sagemaker.text_files import write_text

_NEURON = ("Trainium", "Trainium2", "Inferentia", "Inferentia2")


LOCAL = ("local", "local_gpu")
"""Instance types of SDK 2's local mode: containers on this machine."""


@dataclass(frozen=True)
class Instance:
    """One instance type.

    Attributes:
        name: Name, such as ``ml.p4d.24xlarge``.
        cpus: Number of vCPUs.
        memory: Host memory in GiB.
        gpus: Number of GPUs or of AWS's own accelerators; 0 without either.
        gpu: Model of the GPU or accelerator; empty without one.
        gpu_memory: Memory of each GPU in GiB, as the driver reports it.
        network: Peak bandwidth to other hosts in Gbit/s.
        efa: Whether the host has an Elastic Fabric Adapter.

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
    """Look up an instance type by its name.

    Raises:
        LaunchError: If ``name`` is not a SageMaker training instance, has AWS's own accelerators, or means local mode.

    """
    found = INSTANCES.get(name)
    if name in LOCAL:
        raise LaunchError(
            f"instance_type={name!r} was set, but containers are not run on this machine. HINT: set the job's own type, and"
            " rehearse the job here: `lightning-sagemaker launch ... --rehearse`."
        )
    if found is None:
        raise LaunchError(
            f"instance_type={name!r} is not a SageMaker training instance ({instance_table_date()}). HINT:"
            f" {suggestion(name, INSTANCES)} Newer types: `launch --refresh-instances`."
        )
    if found.gpu in _NEURON:
        raise LaunchError(
            f"{name} has {found.gpus} {found.gpu}, for which torch needs AWS's Neuron SDK. HINT: use an instance with GPUs;"
            " this package trains on CUDA GPUs or CPUs."
        )
    return found


def instance_table_date() -> str:
    """Date and source of the table of instance types, as text."""
    table = _table()
    return f"{table['date']}, {table['source']}"


def refresh_instances(region: str, client: Client | None = None) -> Path:
    """Read the instance types' hardware from EC2 and cache it; needs credentials for ``ec2:DescribeInstanceTypes``.

    The names are those that the installed botocore knows for CreateTrainingJob. Types that EC2 does not list in
    the region, such as those no longer sold, keep their entries.

    Args:
        region: AWS region, such as ``us-east-1``.
        client: A boto3 client of ``ec2``; created when None.

    Returns:
        The cached file, which is read from then on.

    Raises:
        LaunchError: If boto3 is not installed, or EC2 lists no training instances.

    """
    if client is None:
        client = make_client("ec2", region)
    import botocore.session

    model = botocore.session.get_session().get_service_model("sagemaker")
    pages = client.get_paginator("describe_instance_types").paginate()
    found = {f"ml.{one['InstanceType']}": _facts(one) for page in pages for one in page["InstanceTypes"]}
    names = sorted(model.shape_for("TrainingInstanceType").enum)
    new = {name: found[name] for name in names if name in found}
    if not new:
        raise LaunchError(f"EC2 lists no training instances in {region!r}. HINT: check the region's name.")
    content = {
        "date": date.today().isoformat(),
        "source": f"names: botocore {botocore.__version__}; facts: EC2's DescribeInstanceTypes in {region}",
        "instances": dict(sorted({**_table()["instances"], **new}.items())),
    }
    path = refreshed_table()
    write_text(path, json.dumps(content, indent=1))
    _table.cache_clear()
    INSTANCES.update(_instances(content))
    return path


def _facts(one: dict[str, Any]) -> list[Any]:
    """Fields of :class:`Instance` after the name, from an entry of DescribeInstanceTypes."""
    network = one["NetworkInfo"]
    kinds = one.get("GpuInfo", {}).get("Gpus") or one.get("NeuronInfo", {}).get("NeuronDevices") or []
    first: dict[str, Any] = kinds[0] if kinds else {"Count": 0, "Name": ""}
    return [
        one["VCpuInfo"]["DefaultVCpus"],
        one["MemoryInfo"]["SizeInMiB"] // 1024,
        first["Count"],
        first["Name"],
        round(first.get("MemoryInfo", {}).get("SizeInMiB", 0) / 1024),
        sum(card["PeakBandwidthInGbps"] for card in network["NetworkCards"]),
        network["EfaSupported"],
    ]


@cache
def _table() -> dict[str, Any]:
    own: dict[str, Any] = json.loads((resources.files(__package__) / "data" / "instances.json").read_text())
    try:
        found = json.loads(refreshed_table().read_text())
        return found if found["date"] >= own["date"] and _instances(found) else own
    except (OSError, ValueError, KeyError, TypeError):
        return own  # there is no refreshed table, or it is invalid


def refreshed_table(name: str = "instances") -> Path:
    """Path of a cached table, such as the one that :func:`refresh_instances` writes."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning-sagemaker" / f"{name}.json"


def _instances(table: dict[str, Any]) -> dict[str, Instance]:
    return {name: Instance(name, *facts) for name, facts in table["instances"].items()}


INSTANCES = _instances(_table())
"""Name -> hardware of every instance type that CreateTrainingJob accepts."""
