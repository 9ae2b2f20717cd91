# SPDX-License-Identifier: Apache-2.0
"""Choose whether the processes of a simulated job import for themselves, or are forked from one that has imported."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from lightning_sagemaker.cores import available_cores
from lightning_sagemaker.simulator.contract import Cluster, LocalClusterError
from lightning_sagemaker.simulator.host_init import PRELOAD
from lightning_sagemaker.simulator.launchers import Program

_START = "import sys; from lightning_sagemaker.simulator.preload.server import main; main(sys.argv[1:])"
_GROUPS = ("torch", "torchmetrics", "lightning")
_WAITING = 4096
"""Maximum number of shims that wait for the server: more than a machine runs."""


def choose(asked: bool | None, program: Program, processes: int, own_folders: str | None) -> tuple[bool, str]:
    """Whether to fork, and the text about it in the first line of output.

    Args:
        asked: True for ``--preload``, False for ``--no-preload``, None for neither.
        program: Program of every rank.
        processes: Number of ranks.
        own_folders: PYTHONPATH if each host runs the program in a separate folder; else None.

    Raises:
        LocalClusterError: If ``--preload`` was set and is not possible.

    """
    cores = available_cores()
    if asked is False or (asked is None and processes <= cores):
        return False, ""
    obstacle = _obstacle(program, own_folders)
    if obstacle is None:
        return (
            True,
            f"; {processes} processes on {cores} core(s) are forked from one that has imported (or --no-preload)",
        )
    if asked:
        raise LocalClusterError(
            f"--preload was given, but {obstacle}. HINT: leave it out; each process then imports by itself."
        )
    return False, f"; each process imports by itself, because {obstacle}"


def _obstacle(program: Program, own_folders: str | None) -> str | None:
    if sys.platform != "linux":
        return "only Linux forks safely after such imports"
    if program.interpreter != (sys.executable,):
        return f"{program.entry_point!r} is not run by {sys.executable} without options"
    if program.target[0] != "-m" and not program.target[0].endswith(".py"):
        return f"{program.entry_point!r} is neither a module nor a file that ends in .py"
    if any(path and not os.path.isabs(path) for path in (own_folders or "").split(os.pathsep)):
        return "PYTHONPATH names a relative folder, and each host has its own working directory"
    return None


def listen(folder: Path) -> socket.socket:
    """The socket on which the server accepts shims, created before the server starts."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / PRELOAD))
    listener.listen(_WAITING)
    return listener


def server_command(cluster: Cluster, program: Program, listener: socket.socket) -> list[str]:
    """The command of the server, which inherits ``listener``."""
    # When imported, transformers checks whether the job uses the model parallel library.
    names = _GROUPS if cluster.distribution == "smp" else (*_GROUPS[:1], "transformers", *_GROUPS[1:])
    room = [*program.command, "-m", "torch.distributed.run", "-m", "mpi4py"]
    return [*program.interpreter, "-c", _START, str(listener.fileno()), ",".join(names), *room]
