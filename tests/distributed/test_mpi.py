# SPDX-License-Identifier: Apache-2.0
"""A real mpirun that has told nobody where rank zero is: as stock DDP, our strategies ask MPI."""

import json
import sys
from pathlib import Path

import pytest

from lightning_sagemaker.simulator.open_mpi import OpenMPI
from tests.conftest import run_bounded

WORKER = Path(__file__).with_name("mpi_worker.py")


def test_hosts_without_an_address_equal_ddps():
    pytest.importorskip("mpi4py")
    mpirun = [OpenMPI.find(sys.executable).mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    one_host = "export OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0; exec"
    done = run_bounded([*mpirun, "sh", "-c", f"{one_host} {sys.executable} {WORKER}"], timeout=120, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("mpirun says that rank zero is on 127.0.0.1") == 2, done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith('{"ddp"'))
    results = json.loads(line)
    assert len(results) == 4
    assert all(weights == results["ddp"] for weights in results.values())
