# SPDX-License-Identifier: Apache-2.0
"""Open MPI 4 or 5 on this machine: the mpirun that belongs to a Python, and the options of each version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lightning_sagemaker.simulator.checks import own_home

_VERSION = re.compile(r"\(Open MPI\) (\d+)\.")
_NO_MODULE = 3
_PROBE = f"""
import importlib.util, sys
if importlib.util.find_spec("mpi4py") is None:
    sys.exit({_NO_MODULE})
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
"""


class NoOpenMPIError(Exception):
    """Mpirun cannot start ranks here; the message says why."""


@dataclass(frozen=True)
class OpenMPI:
    """An installed mpirun.

    Attributes:
        mpirun: Path of mpirun.
        major: Major version, such as 4 or 5.

    """

    mpirun: str
    major: int

    @classmethod
    def find(cls, python: str, *, runs_ranks: bool = True) -> OpenMPI:
        """Find mpirun next to ``python``, where mpi4py looks first too, else on the PATH or next to this interpreter.

        Args:
            python: Path of a Python interpreter.
            runs_ranks: Whether ``python`` also runs the ranks, for which it needs mpi4py and an MPI library.

        Raises:
            NoOpenMPIError: If mpirun, mpi4py or the MPI library is missing, or mpirun is not Open MPI's.

        """
        of_ranks, own = (str(Path(shutil.which(name) or name).parent) for name in (python, sys.executable))
        folders = (of_ranks, os.environ.get("PATH", os.defpath), own)
        mpirun = shutil.which("mpirun", path=os.pathsep.join(folders))
        if mpirun is None:
            raise NoOpenMPIError("mpirun is not installed")
        version = _VERSION.search(_run(mpirun, "--version").stdout)
        if version is None:
            raise NoOpenMPIError(f"{mpirun} is not Open MPI's")
        code = _run(python, "-c", _PROBE).returncode if runs_ranks else 0
        if code:
            raise NoOpenMPIError(f"mpi4py {'is not installed' if code == _NO_MODULE else 'cannot load an MPI library'}")
        return cls(mpirun, int(version[1]))

    def reach_by(self, agent: str) -> list[str]:
        """Options that replace ssh by a program ``agent HOST COMMAND``; version 4 does not start without either."""
        option, name = ("-mca", "rsh") if self.major < 5 else ("--prtemca", "ssh")
        return [option, f"plm_{name}_agent", agent, option, f"plm_{name}_no_tree_spawn", "1"]

    def talk_on(self, interface: str) -> list[str]:
        """Options that restrict the ranks and daemons of all hosts to one network interface."""
        daemons = ["-mca", "oob_tcp_if_include"] if self.major < 5 else ["--prtemca", "prte_if_include"]
        return ["-mca", "btl_tcp_if_include", interface, *daemons, interface]


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": own_home(), **os.environ}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)
