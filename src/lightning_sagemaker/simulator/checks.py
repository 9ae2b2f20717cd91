# SPDX-License-Identifier: Apache-2.0
"""Checks of a simulated job before anything is started. They raise LocalClusterError."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lightning_sagemaker.simulator.contract import (
    MAX_HOSTS,
    Cluster,
    Container,
    LocalClusterError,
    exceeded_limit,
    invalid_channel,
)

MAX_TEMPORARY = 64
"""Maximum bytes in the path of a folder for sockets: an address has at most 104 (macOS), the file name up to 40."""
_SECONDS = 3.0


def check_choice(what: str, given: str, known: Sequence[str]) -> None:
    """Check that ``given`` is one of ``known``."""
    if given not in known:
        raise LocalClusterError(f"{what}={given!r} is not known. HINT: choose one of {', '.join(known)}.")


def check_system() -> None:
    """Check that hosts can be simulated here."""
    if not hasattr(os, "fork"):
        raise LocalClusterError(
            "A simulated job needs fork, which Windows does not have."
            " HINT: run it in WSL 2, or train on one process: python train.py."
        )
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=_SECONDS).close()
    except OSError as error:
        raise LocalClusterError(
            f"127.0.0.1, where simulated hosts meet, cannot be reached on this machine ({error.strerror or error})."
            " HINT: ip link set lo up; ip address add 127.0.0.1/8 dev lo."
        ) from error


def check_counts(hosts: int, processes_per_host: int, timeout: float | None) -> None:
    """Check that both numbers are at least 1, that a job may have so many hosts, and that there is time to start them."""
    for what, given in (("hosts", hosts), ("processes_per_host", processes_per_host)):
        if given < 1:
            raise LocalClusterError(f"{what}={given} was set. HINT: it must be at least 1.")
    if hosts > MAX_HOSTS:
        raise LocalClusterError(f"hosts={hosts} was set. HINT: a job has at most {MAX_HOSTS}.")
    if timeout is not None and not timeout > 0:
        raise LocalClusterError(
            f"timeout={timeout:g} was set. HINT: give the seconds after which everything is stopped, or none for no limit."
        )


def make_root(root: Path) -> Path:
    """Create the folder of the job, and check that it is writable; return its absolute path."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root):
            pass
    except OSError as error:
        raise LocalClusterError(
            f"The hosts' folders cannot be created in {str(root)!r}: {error.strerror}. HINT: choose another --root."
        ) from error
    return root.resolve()


def temporary_folder() -> str:
    """Folder for temporary files of the simulator and its processes: TMPDIR, or /tmp if its path is too long for sockets.

    With a longer path, the first worker of a DataLoader fails and the DataLoader hangs.
    """
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= MAX_TEMPORARY else "/tmp"


def own_home() -> str:
    """HOME, else the home directory in the system's user database, else the folder for temporary files."""
    home = os.path.expanduser("~")
    return home if os.path.isabs(home) else temporary_folder()


def scratch_folder(parent: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder of the simulator in ``parent``, which is deleted when the job ends."""
    try:
        return tempfile.TemporaryDirectory(prefix="lightning-sagemaker-", dir=parent)
    except OSError as error:
        raise LocalClusterError(
            f"No temporary folder can be created in {parent!r}: {error.strerror}. HINT: set TMPDIR to one whose path has at"
            " most 64 characters."
        ) from error


def check_folder(what: str, path: str | os.PathLike[str]) -> Path:
    """Check that a folder exists; return its absolute path."""
    if not os.path.isdir(path):
        raise LocalClusterError(
            f"{what} was set to {os.fspath(path)!r}, which is not a directory. HINT: give an existing one."
        )
    return Path(path).resolve()


def check_limits(cluster: Cluster, container: Container) -> None:
    """Check SageMaker's limits and those of the containers, so that a job that passes here passes there."""
    problems = [exceeded_limit(container.hyperparameters_file(cluster)), *map(invalid_channel, cluster.channels)]
    for problem in filter(None, problems):
        raise LocalClusterError(problem)
    temporary = cluster.environment.get("TMPDIR", "")
    if len(os.fsencode(temporary)) > MAX_TEMPORARY:
        raise LocalClusterError(
            f"TMPDIR was set to {temporary!r}, whose path is too long for the sockets of loader workers. HINT: use at most"
            f" {MAX_TEMPORARY} characters, such as /tmp."
        )
    parallel = cluster.hyperparameters.get("mp_parameters")
    if cluster.distribution == "smp" and not (isinstance(parallel, dict) and parallel):
        raise LocalClusterError(
            f"The distribution smp was chosen, but mp_parameters is {parallel!r}. HINT: give --mp-parameters"
            ' \'{"partitions": 2, "microbatches": 4, "ddp": true}\'.'
        )
    if (limitation := container.check(cluster)) is not None:
        raise LocalClusterError(limitation)
