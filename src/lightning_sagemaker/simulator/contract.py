# SPDX-License-Identifier: Apache-2.0
"""Names, files and encodings of SageMaker's training containers that do not depend on the container's generation.

Sources: the CreateTrainingJob API and the developer guide's page on how training information reaches a container;
``sagemaker-training`` 5.1.4 and the container drivers of ``sagemaker-train`` 1.27.0 (read November 2026).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.job.job import CHECKPOINTS, MODEL, OUTPUT
from lightning_sagemaker.text_files import write_text

GROUP = "homogeneousCluster"
"""Name of the only instance group of a job that defines none."""

MASTER_PORT = 7777
"""Port of the first host in both generations."""

LOG_LEVEL = 20
"""Level of SageMaker's programs in the container unless a job sets another: INFO of Python's ``logging``."""

DISTRIBUTIONS = ("smddp", "ddp", "torch_distributed", "mpi", "smp", "none")
"""Kinds of distributions."""

MAX_HOSTS = 1000
"""Maximum number of hosts of a job or a simulated job."""

MAX_HYPERPARAMETERS, MAX_NAME, MAX_VALUE = 100, 256, 2500
"""Limits of CreateTrainingJob: number of hyperparameters, characters of a name and of a value."""

_CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

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
"""Variables of a job or a launcher, which the hosts do not inherit from the simulator's process."""


def without_contract(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are not those of a job or a launcher."""
    return {
        name: value
        for name, value in environment.items()
        if name not in CONTRACT_NAMES and not name.startswith(CONTRACT_PREFIXES)
    }


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
"""Instance types for which ``sagemaker-training`` 5.1.4 sets EFA's variables; for :data:`RDMA_TYPES` those of RDMA too."""

_DRIVERS_WITHOUT_EFA = frozenset(("ml.p6e-gb200.36xlarge",))


class LocalClusterError(LaunchError):
    """A simulated cluster cannot be started with these arguments."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """One simulated job: what its files and variables tell every host."""

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
    """Working directory of the program."""
    hyperparameters: Mapping[str, object]
    channels: tuple[str, ...]
    gpus_per_host: int
    region: str
    environment: Mapping[str, str] = field(default_factory=dict)
    """The user's environment variables, as of the estimator's ``environment=``."""


@dataclass(frozen=True)
class Folders:
    """The folders of one host, which correspond to ``/opt/ml`` in a container."""

    base: Path

    @property
    def config(self) -> Path:
        """Folder of the three JSON files that :func:`begin_host` writes."""
        return self.base / "input" / "config"

    @property
    def data(self) -> Path:
        """Folder with one folder per channel."""
        return self.base / "input" / "data"

    @property
    def failure(self) -> Path:
        """File whose text becomes the job's FailureReason."""
        return self.base / "output" / "failure"

    def create(self) -> None:
        """Create every folder that a container has."""
        for name in ("input/config", "input/data", MODEL, OUTPUT, CHECKPOINTS, "code"):
            (self.base / name).mkdir(parents=True, exist_ok=True)


def exceeded_limit(hyperparameters: Mapping[str, str]) -> str | None:
    """Which limit of CreateTrainingJob these hyperparameters exceed, as a message; None if none."""
    if len(hyperparameters) > MAX_HYPERPARAMETERS:
        count = len(hyperparameters)
        return f"{count} hyperparameters were given, SageMaker accepts {MAX_HYPERPARAMETERS}. HINT: pass a file."
    for name, value in hyperparameters.items():
        if len(name) > MAX_NAME or len(value) > MAX_VALUE:
            return (
                f"Hyperparameter {name[:MAX_NAME]!r} has {len(value)} characters, SageMaker accepts {MAX_VALUE} (and"
                f" {MAX_NAME} in a name). HINT: pass a file."
            )
    return None


def invalid_channel(name: str) -> str | None:
    """Why CreateTrainingJob refuses a channel of this name, as a message; None if it does not."""
    if _CHANNEL_NAME.fullmatch(name):
        return None
    return f"Channel {name!r} was set. HINT: SageMaker accepts 1 to 64 letters, digits, dots, dashes and underscores."


class Container(Protocol):
    """A generation of containers; the modules of ``containers/`` are its implementations.

    Attributes:
        CODE: Path of the user's code, relative to the host's folder.

    """

    CODE: str

    def check(self, cluster: Cluster) -> str | None:
        """Why jobs of this kind fail in these containers; None if they do not."""

    def to_arguments(self, hyperparameters: dict[str, object]) -> list[str]:
        """The arguments that the container makes of hyperparameters."""

    def hyperparameters_file(self, cluster: Cluster) -> dict[str, str]:
        """Content of ``hyperparameters.json``, with what an SDK adds."""

    def all_channels(self, cluster: Cluster) -> tuple[str, ...]:
        """Names of the channels, with those that an SDK adds."""

    def host_environment(self, cluster: Cluster, host: str, folders: Folders) -> dict[str, str]:
        """Variables of a host before any launcher runs."""

    def launcher_environment(self, cluster: Cluster) -> dict[str, str]:
        """Variables that are added for the launcher."""


def resource_config(cluster: Cluster, host: str) -> dict[str, Any]:
    """Content of ``resourceconfig.json`` on one host."""
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
    """Content of ``inputdataconfig.json``: every channel is in File mode and fully replicated."""
    entry = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
    return {name: dict(entry) for name in channels}


def fabric_variables(cluster: Cluster) -> dict[str, str]:
    """Variables of EFA that both generations set for some instance types before torchrun or mpirun."""
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


def begin_host(
    folders: Folders, resources: Mapping[str, object], hyperparameters: Mapping[str, str], inputs: Mapping[str, object]
) -> None:
    """Create the folders of a host, with the three files of ``input/config`` and without an earlier failure.

    Args:
        folders: Folders of the host.
        resources: Content of ``resourceconfig.json``.
        hyperparameters: Hyperparameters as the SDK encodes them; every value is a string.
        inputs: Content of ``inputdataconfig.json``.

    """
    folders.create()
    folders.failure.unlink(missing_ok=True)
    for name, content in (
        ("resourceconfig", resources),
        ("hyperparameters", hyperparameters),
        ("inputdataconfig", inputs),
    ):
        write_text(folders.config / f"{name}.json", json.dumps(dict(content)))
