# SPDX-License-Identifier: Apache-2.0
"""The folders, files and variables of one simulated host."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from lightning_sagemaker.simulator.checks import own_home, temporary_folder
from lightning_sagemaker.simulator.contract import CONTRACT_NAMES, CONTRACT_PREFIXES, Cluster, Folders, write_config

SMDDPRUN = "LIGHTNING_SAGEMAKER_SMDDPRUN"
"""Asks ``host_init.py`` to add what AWS's ``smddprun`` adds to each rank."""

IMAGE = Path(__file__).with_name("image")
"""What a training image has installed and this machine may not: ``smdistributed``."""

_LISTENERS = range(10000, 32768)
"""Ports below those that Linux and macOS give to connections: a rank listens seconds after its port was chosen."""

START = Path(__file__).with_name("image_start")
"""The same for ``torch.sagemaker``, by what Python runs when a process starts."""

_NOT_COPIED = shutil.ignore_patterns(".git", "__pycache__", ".venv", "runs")


def prepare_folders(
    cluster: Cluster, module: ModuleType, folders: Folders, host: str, sources: Mapping[str, Path], code: Path | None
) -> None:
    """Make what a host finds on its disk before anything runs.

    Args:
        cluster: The job.
        module: The container generation.
        folders: The host's own tree.
        host: Its name.
        sources: Channel name -> the folder that it links to.
        code: Copied to the host's code folder; None when the program runs where it is.

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
        shutil.copytree(code, target, ignore=_NOT_COPIED)


def own_environment() -> dict[str, str]:
    """This process's variables without those of a job or a launcher, with a TMPDIR in which sockets can be made, and a HOME.

    Containers have one, and Open MPI does nothing without.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in CONTRACT_NAMES and not name.startswith(CONTRACT_PREFIXES)
    }
    variables.setdefault("HOME", own_home())
    return variables if temporary_folder() == tempfile.gettempdir() else variables | {"TMPDIR": temporary_folder()}


def host_environment(cluster: Cluster, module: ModuleType, host: str, folders: Folders) -> dict[str, str]:
    """The variables of ``host`` that the service and its container set, and the simulator's own."""
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
    return variables


def module_path(given: str | None) -> str:
    """PYTHONPATH of a simulated job: what it would be, and what AWS's images have.

    Args:
        given: Without that.

    """
    return os.pathsep.join(filter(None, (str(START), given, str(IMAGE))))


def rank_environment(cluster: Cluster, module: ModuleType, index: int, folders: Folders) -> dict[str, str]:
    """What the ranks of host number ``index`` see when mpirun has started them from the first host."""
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
    """The GPUs of host number ``index``: a share of this machine's, or none."""
    if not visible:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible[index * per_host : (index + 1) * per_host])}


def visible_gpus() -> list[str]:
    """This machine's GPUs by the names that CUDA_VISIBLE_DEVICES uses; counted as the containers do, by nvidia-smi."""
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
    """An equal share for each host, or none where a process would have to do without."""
    share = visible // hosts
    return share if share >= processes else 0


def free_port() -> int:
    """A port that nothing uses, and that no outgoing connection takes before somebody listens there."""
    for port in (*random.SystemRandom().sample(_LISTENERS, 100), 0):
        with contextlib.suppress(OSError), contextlib.closing(socket.socket()) as probe:
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise OSError("no port is free")
