# SPDX-License-Identifier: Apache-2.0
"""Names, files and encodings of SageMaker's training containers that do not depend on the container's generation.

Sources: the CreateTrainingJob API and the developer guide's page on how training information reaches a container;
``sagemaker-training`` 5.1.4 and the container drivers of ``sagemaker-train`` 1.27.0 (read November 2026).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_sagemaker.errors import LaunchError

GROUP = "homogeneousCluster"
"""The name of the only instance group of a job that asks for none."""

MASTER_PORT = 7777
"""Both generations' port of the first host."""

LOG_LEVEL = 20

MAX_HYPERPARAMETERS, MAX_NAME, MAX_VALUE = 100, 256, 2500
"""Limits of CreateTrainingJob: number of hyperparameters, characters of a name and of a value."""

CONTRACT_PREFIXES = ("SM_", "OMPI_", "PMIX_", "TORCHELASTIC_", "SAGEMAKER_", "SMDATAPARALLEL_", "ROLE_", "GROUP_")
CONTRACT_NAMES = frozenset(
    [
        "RANK",
        "LOCAL_RANK",
        "NODE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "CURRENT_HOST",
        "TRAINING_JOB_NAME",
        "TRAINING_JOB_ARN",
    ]
)
"""Variables of a job or a launcher: those of the simulator's own process do not reach the hosts."""

RDMA_TYPES = frozenset(
    [
        "ml.p4d.24xlarge",
        "ml.p4de.24xlarge",
        "ml.p5.48xlarge",
        "ml.p5e.48xlarge",
        "ml.trn1.32xlarge",
        "ml.p6e-gb200.36xlarge",
    ]
)
EFA_TYPES = RDMA_TYPES | {"ml.g4dn.8xlarge", "ml.g4dn.12xlarge", "ml.g5.48xlarge", "ml.p3dn.24xlarge"}
"""Instance types for which ``sagemaker-training`` 5.1.4 sets EFA's RDMA variables, and EFA's in general."""

_DRIVERS_WITHOUT_EFA = frozenset(("ml.p6e-gb200.36xlarge",))


class LocalClusterError(LaunchError):
    """A simulated cluster that cannot be started as asked for."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """One simulated job: what every host of it is told."""

    job_name: str
    hosts: tuple[str, ...]
    processes_per_host: int
    distribution: str
    contract: str
    instance_type: str
    network_interface: str
    main_address: str
    main_port: int
    entry_point: str
    """Script, module or program as the user named it."""
    arguments: tuple[str, ...]
    code: Path
    """Where the program runs."""
    hyperparameters: Mapping[str, object]
    channels: tuple[str, ...]
    gpus_per_host: int
    region: str
    environment: Mapping[str, str] = field(default_factory=dict)
    """The user's own variables, as the estimator's ``environment=`` gives them."""


@dataclass(frozen=True)
class Folders:
    """The tree of one host, as the processes of that host see it."""

    base: Path

    @property
    def config(self) -> Path:
        """The three JSON files."""
        return self.base / "input" / "config"

    @property
    def data(self) -> Path:
        """One folder per channel."""
        return self.base / "input" / "data"

    @property
    def failure(self) -> Path:
        """The text that becomes the job's FailureReason."""
        return self.base / "output" / "failure"

    def create(self) -> None:
        """Make every folder that a container has."""
        for name in ("input/config", "input/data", "model", "output/data", "checkpoints", "code"):
            (self.base / name).mkdir(parents=True, exist_ok=True)


def resource_config(cluster: Cluster, host: str) -> dict[str, Any]:
    """``resourceconfig.json`` of one host."""
    group = {"instance_group_name": GROUP, "instance_type": cluster.instance_type, "hosts": list(cluster.hosts)}
    return {
        "current_host": host,
        "current_instance_type": cluster.instance_type,
        "current_group_name": GROUP,
        "hosts": list(cluster.hosts),
        "instance_groups": [group],
        "network_interface_name": cluster.network_interface,
    }


def input_data_config(channels: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """``inputdataconfig.json``: every channel is a folder that is complete on each host."""
    entry = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
    return {name: dict(entry) for name in channels}


def fabric_variables(cluster: Cluster) -> dict[str, str]:
    """The variables for EFA that both generations set for some instance types before torchrun or mpirun."""
    kind, variables = cluster.instance_type, {}
    known = cluster.contract == "toolkit" or kind not in _DRIVERS_WITHOUT_EFA
    if known and kind in EFA_TYPES:
        variables["FI_PROVIDER"] = "efa"
    if known and kind in RDMA_TYPES:
        variables |= {"FI_EFA_USE_DEVICE_RDMA": "1", "RDMAV_FORK_SAFE": "1"}
    return variables


def compact(value: object) -> str:
    """JSON as the toolkit writes it: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` under another name and rename it: a reader sees all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def write_config(
    cluster: Cluster, host: str, folders: Folders, hyperparameters: Mapping[str, str], channels: tuple[str, ...]
) -> None:
    """Write the three files of ``input/config`` for one host.

    Args:
        cluster: The job.
        host: Its name, such as ``algo-1``.
        folders: Where.
        hyperparameters: Encoded as the job's producer does; every value is a string.
        channels: All of them, those that an SDK adds included.

    """
    for name, content in (
        ("resourceconfig", resource_config(cluster, host)),
        ("hyperparameters", dict(hyperparameters)),
        ("inputdataconfig", input_data_config(channels)),
    ):
        write_atomically(folders.config / f"{name}.json", json.dumps(content))
