# SPDX-License-Identifier: Apache-2.0
"""Open MPI on this machine, 4 or 5: the mpirun that belongs to a Python, and what each calls its options."""

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
    """Why mpirun cannot start ranks here."""


@dataclass(frozen=True)
class OpenMPI:
    """One mpirun.

    Attributes:
        mpirun: Its path.
        major: Its version: 4 or 5.

    """

    mpirun: str
    major: int

    @classmethod
    def find(cls, python: str, *, runs_ranks: bool = True) -> OpenMPI:
        """The one next to ``python``, else on the PATH: mpi4py too looks for its library next to its Python first.

        Args:
            python: An interpreter.
            runs_ranks: Whether it also starts the ranks, for which it needs mpi4py and a library.

        Raises:
            NoOpenMPIError: If something is missing.

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
        """Options that put a program ``agent HOST COMMAND`` into the place of ssh, without which 4 does not even begin."""
        option, name = ("-mca", "rsh") if self.major < 5 else ("--prtemca", "ssh")
        return [option, f"plm_{name}_agent", agent, option, f"plm_{name}_no_tree_spawn", "1"]

    def talk_on(self, interface: str) -> list[str]:
        """Options that keep the ranks and the daemons of all hosts on one network interface."""
        daemons = ["-mca", "oob_tcp_if_include"] if self.major < 5 else ["--prtemca", "prte_if_include"]
        return ["-mca", "btl_tcp_if_include", interface, *daemons, interface]


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": own_home(), **os.environ}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)
