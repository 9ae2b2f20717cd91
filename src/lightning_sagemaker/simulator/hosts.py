# SPDX-License-Identifier: Apache-2.0
"""The folders, files and variables of one simulated host."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType

from lightning_sagemaker.simulator.checks import own_home, temporary_folder
from lightning_sagemaker.simulator.contract import CONTRACT_NAMES, CONTRACT_PREFIXES, Cluster, Folders, write_config

ON_CPUS = "ACCELERATE_USE_CPU"
"""Accelerate's variable for processes without GPUs."""

SMDDPRUN = "LIGHTNING_SAGEMAKER_SMDDPRUN"
"""Asks ``host_init.py`` to add what AWS's ``smddprun`` adds to each rank."""

IMAGE = Path(__file__).with_name("image")
"""Folder of what a training image has installed and this machine may not: ``smdistributed``."""

_LISTENERS = range(10000, 32768)
"""Ports below the ephemeral ones of Linux and macOS: a rank listens seconds after its port was chosen."""

START = Path(__file__).with_name("image_start")
"""The same for ``torch.sagemaker``, by a ``sitecustomize.py`` that Python runs when a process starts."""

_NOT_COPIED = shutil.ignore_patterns(".git", "__pycache__", ".venv", "runs")


def prepare_folders(
    cluster: Cluster, module: ModuleType, folders: Folders, host: str, sources: Mapping[str, Path], code: Path | None
) -> None:
    """Create the folders and files of a host before anything runs.

    Args:
        cluster: The job.
        module: Module of the container generation.
        folders: Folders of the host.
        host: Name of the host.
        sources: Channel name -> local folder to which the channel links.
        code: Folder that is copied to the host's code folder; None if the program runs in the working directory.

    """
    folders.create()
    folders.failure.unlink(missing_ok=True)
    write_config(cluster, host, folders, module.hyperparameters_file(cluster), module.all_channels(cluster))
    for channel, source in sources.items():
        link = folders.data / channel
        if link.is_symlink():
            link.unlink()
        link.symlink_to(source, target_is_directory=True)
    if code is not None:
        target = folders.base / module.CODE
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(code, target, ignore=_without_hosts(folders.base.parent.resolve(), cluster.hosts))


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
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in CONTRACT_NAMES and not name.startswith(CONTRACT_PREFIXES)
    }
    variables.setdefault("HOME", own_home())
    variables["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), variables.get("PATH", os.defpath)))
    return variables if temporary_folder() == tempfile.gettempdir() else variables | {"TMPDIR": temporary_folder()}


def host_environment(cluster: Cluster, module: ModuleType, host: str, folders: Folders) -> dict[str, str]:
    """Variables of ``host`` that the user, the service and the container set, and those of the simulator."""
    variables = dict(cluster.environment)
    variables |= {
        "AWS_REGION": cluster.region,
        "TRAINING_JOB_NAME": cluster.job_name,
        "TRAINING_JOB_ARN": f"arn:aws:sagemaker:{cluster.region}:111122223333:training-job/{cluster.job_name}",
    }
    variables |= module.host_environment(cluster, host, folders) | module.launcher_environment(cluster)
    variables |= {
        "LIGHTNING_SAGEMAKER_SIMULATED": "1",
        "PYTHONUNBUFFERED": "1",
        "SAGEMAKER_BASE_DIR": str(folders.base),
    }
    variables["PYTHONPATH"] = module_path(variables.get("PYTHONPATH", os.environ.get("PYTHONPATH")))
    return without_gpus(cluster.gpus_per_host, os.environ, cluster.hyperparameters) | variables


def without_gpus(gpus: int, given: Mapping[str, str], hyperparameters: Mapping[str, object]) -> dict[str, str]:
    """What tells programs to be distributed on CPUs: accelerate, and so ``transformers.Trainer``, trains one by one else.

    Args:
        gpus: Number of GPUs of the host.
        given: Variables that the user has set.
        hyperparameters: Those of the job. ``Trainer`` on partitions of SMP 1 fails if it is told so.

    """
    partitioned = "partitions" in str(hyperparameters.get("mp_parameters"))
    return {} if gpus or partitioned or ON_CPUS in given else {ON_CPUS: "true"}


def module_path(given: str | None) -> str:
    """PYTHONPATH of a simulated job, with the folders that simulate the packages of AWS's images.

    Args:
        given: PYTHONPATH without these folders; None if it is not set.

    """
    return os.pathsep.join(filter(None, (str(START), given, str(IMAGE))))


def rank_environment(cluster: Cluster, module: ModuleType, index: int, folders: Folders) -> dict[str, str]:
    """Variables of the ranks on the host with this index, when mpirun has started them from the first host."""
    host = cluster.hosts[index]
    # The toolkit's MPI runner exports the first host's SM_* variables to every rank.
    named = cluster.hosts[0] if cluster.distribution == "mpi" else host
    variables = host_environment(cluster, module, named, folders) | {"PMIX_HOSTNAME": host}
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
