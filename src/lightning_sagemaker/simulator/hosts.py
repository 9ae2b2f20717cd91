# SPDX-License-Identifier: Apache-2.0
"""The folders, files and variables of simulated hosts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lightning_sagemaker.simulator.channels import link_channel
from lightning_sagemaker.simulator.checks import own_home, temporary_folder
from lightning_sagemaker.simulator.containers import CONTRACTS
from lightning_sagemaker.simulator.contract import (
    Cluster,
    Container,
    Folders,
    begin_host,
    input_data_config,
    resource_config,
    without_contract,
)
from lightning_sagemaker.text_files import write_text

ON_CPUS = "ACCELERATE_USE_CPU"
"""Accelerate's variable for processes without GPUs."""

SMDDPRUN = "LIGHTNING_SAGEMAKER_SMDDPRUN"
"""Asks ``host_init.py`` to add what AWS's ``smddprun`` adds to each rank."""

IMAGE = Path(__file__).with_name("image")
"""Folder of what a training image has installed and this machine may not: ``smdistributed``."""

START = Path(__file__).with_name("image_start")
"""The same for ``torch.sagemaker``, by a ``sitecustomize.py`` that Python runs when a process starts."""

DEFAULT_REGION = "us-east-1"
"""Region of a simulated job, unless AWS_REGION is set."""

_LISTENERS = range(10000, 32768)
"""Ports below the ephemeral ones of Linux and macOS: a rank listens seconds after its port was chosen."""

_NOT_COPIED = shutil.ignore_patterns(".git", "__pycache__", ".venv", "runs")


@dataclass(frozen=True, kw_only=True)
class SimulatedHosts:
    """The folders, files and variables of a job's hosts.

    Attributes:
        cluster: The job.
        root: Folder of the hosts' folders.
        source_dir: Folder that is copied to each host's code folder; None if the program runs in the working directory.
        channels: Channel name -> local folder, of which each host gets a view.
        gpus: This machine's GPUs, as :func:`visible_gpus` names them.

    """

    cluster: Cluster
    root: Path
    source_dir: Path | None
    channels: Mapping[str, Path]
    gpus: list[str]

    @property
    def container(self) -> Container:
        """The job's generation of containers."""
        return CONTRACTS[self.cluster.contract]

    def folders(self, index: int) -> Folders:
        """The folders of the host with this index."""
        return Folders(self.root / self.cluster.hosts[index])

    def cwd(self, index: int) -> Path:
        """Folder in which the program runs on the host with this index."""
        return self.cluster.code if self.source_dir is None else self.folders(index).base / self.container.CODE

    def prepare(self, index: int, scratch: Path) -> dict[str, str]:
        """Write the files of a host; return the environment of its first process.

        Args:
            index: Index of the host.
            scratch: The simulator's own folder, for the variables of the host's ranks.

        """
        cluster, folders = replace(self.cluster, code=self.cwd(index)), self.folders(index)
        self._write_files(cluster, index, folders)
        gpus = gpu_variables(self.gpus, index, cluster.gpus_per_host)
        of_ranks = rank_environment(cluster, self.container, index, folders) | gpus
        write_text(scratch / f"host-{index}.json", json.dumps(of_ranks))
        base = own_environment()
        base.setdefault("OMP_NUM_THREADS", threads_per_process(len(cluster.hosts) * cluster.processes_per_host))
        return base | host_environment(cluster, self.container, cluster.hosts[index], folders) | gpus

    def _write_files(self, cluster: Cluster, index: int, folders: Folders) -> None:
        resources = resource_config(cluster, cluster.hosts[index])
        inputs = input_data_config(self.container.all_channels(cluster))
        begin_host(folders, resources, self.container.hyperparameters_file(cluster), inputs)
        for channel, source in self.channels.items():
            link_channel(source, folders.data / channel)
        if self.source_dir is not None:
            target = folders.base / self.container.CODE
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(self.source_dir, target, ignore=_without_hosts(self.root.resolve(), cluster.hosts))


def threads_per_process(processes: int) -> str:
    """OMP_NUM_THREADS for processes that share this machine; torchrun and Open MPI would use all cores once per process."""
    return str(max(1, (os.cpu_count() or 1) // processes))


def _without_hosts(root: Path, hosts: Collection[str]) -> Callable[[str, list[str]], set[str]]:
    """What of a source folder is not copied: the hosts' folders may be in it, and a copy of itself has no end."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        place = Path(folder)
        own = {name for name in names if place / name == root or (place == root and name in hosts)}
        return own | set(_NOT_COPIED(folder, names))

    return ignored


def own_environment() -> dict[str, str]:
    """This process's variables without those of a job or a launcher, with a HOME, and a TMPDIR short enough for sockets.

    Containers have a HOME, and Open MPI needs one. First on the PATH are the programs of this interpreter's environment: in
    an image a shell script finds ``python`` and ``torchrun`` too.
    """
    variables = without_contract(os.environ)
    variables.setdefault("HOME", own_home())
    variables["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), variables.get("PATH", os.defpath)))
    return variables if temporary_folder() == tempfile.gettempdir() else variables | {"TMPDIR": temporary_folder()}


def host_environment(cluster: Cluster, container: Container, host: str, folders: Folders) -> dict[str, str]:
    """Variables of ``host`` that the user, the service and the container set, and those of the simulator."""
    variables = {**cluster.environment, **job_variables(cluster.job_name, cluster.region)}
    variables |= container.host_environment(cluster, host, folders) | container.launcher_environment(cluster)
    variables |= simulation_variables(folders, variables.get("PYTHONPATH", os.environ.get("PYTHONPATH")))
    return without_gpus(cluster.gpus_per_host, {**os.environ, **variables}, cluster.hyperparameters) | variables


def job_variables(name: str, region: str) -> dict[str, str]:
    """Variables that SageMaker sets for a job in a region."""
    return {
        "AWS_REGION": region,
        "TRAINING_JOB_NAME": name,
        "TRAINING_JOB_ARN": f"arn:aws:sagemaker:{region}:111122223333:training-job/{name}",
    }


def simulation_variables(folders: Folders, python_path: str | None) -> dict[str, str]:
    """Variables of every simulated host, in any generation of containers.

    Args:
        folders: Folders of the host.
        python_path: PYTHONPATH without the folders that simulate the packages of AWS's images; None if it is not set.

    """
    return {
        "LIGHTNING_SAGEMAKER_SIMULATED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(START), python_path, str(IMAGE)))),
        "PYTHONUNBUFFERED": "1",
        "SAGEMAKER_BASE_DIR": str(folders.base),
    }


def without_gpus(gpus: int, given: Mapping[str, str], hyperparameters: Mapping[str, object]) -> dict[str, str]:
    """What tells programs to be distributed on CPUs: accelerate, and so ``transformers.Trainer``, trains one by one else.

    Args:
        gpus: Number of GPUs of the host.
        given: Variables that the user has set.
        hyperparameters: Those of the job. ``Trainer`` on partitions of SMP 1 fails if it is told so.

    """
    partitioned = "partitions" in str(hyperparameters.get("mp_parameters"))
    if gpus or partitioned or ON_CPUS in given:
        return {}
    asks_for_smddp = given.get("ACCELERATE_USE_SAGEMAKER", "").lower() == "true"
    if asks_for_smddp and given.get("ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE") != "NO":
        return {"ACCELERATE_TORCH_DEVICE": "cpu"}  # told to be on CPUs, accelerate would create no group for SMDDP
    return {ON_CPUS: "true"}


def rank_environment(cluster: Cluster, container: Container, index: int, folders: Folders) -> dict[str, str]:
    """Variables of the ranks on the host with this index, when mpirun has started them from the first host."""
    host = cluster.hosts[index]
    # The toolkit's MPI runner exports the first host's SM_* variables to every rank.
    named = cluster.hosts[0] if cluster.distribution == "mpi" else host
    variables = host_environment(cluster, container, named, folders) | {"PMIX_HOSTNAME": host}
    if cluster.contract == "toolkit":
        variables["CURRENT_HOST"] = host
        if cluster.distribution == "smddp":
            variables[SMDDPRUN] = "1"
    return variables


def gpu_variables(visible: list[str], index: int, per_host: int) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES of the host with this index: its share of this machine's GPUs, or none."""
    if not visible:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible[index * per_host : (index + 1) * per_host])}


def visible_gpus() -> list[str]:
    """This machine's GPUs as in CUDA_VISIBLE_DEVICES; without it, counted by nvidia-smi, as in the containers."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(
        ["nvidia-smi", "--list-gpus"], check=False, capture_output=True, text=True, timeout=60
    ).stdout
    return [str(index) for index, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]


def gpus_per_host(visible: int, hosts: int, processes: int) -> int:
    """Number of GPUs of each host: an equal share, or 0 if it is less than one per process."""
    share = visible // hosts
    return share if share >= processes else 0


def free_port() -> int:
    """A free port that no outgoing connection can take before a process listens on it; raise OSError without one."""
    for port in (*random.SystemRandom().sample(_LISTENERS, 100), 0):
        with contextlib.suppress(OSError), contextlib.closing(socket.socket()) as probe:
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise OSError("no port is free")
