# SPDX-License-Identifier: Apache-2.0
"""An environment of Lightning that raises when it is asked: real mpi4py, whose library is not found."""

from pathlib import Path

import pytest

from tests.conftest import fork_ranks, read_ranks

WORKER = Path(__file__).with_name("environments_worker.py")
NO_LIBRARY = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_training_goes_on_without_it(tmp_path, package):
    pytest.importorskip("mpi4py")
    fork_ranks(WORKER, tmp_path, processes=0, LIGHTNING_SAGEMAKER_PACKAGE=package, **NO_LIBRARY)
    (result,) = read_ranks(tmp_path)
    assert result["steps"] == 2
    for name, outcome in result["outcomes"].items():
        if name.split()[1] in ("ddp", "DDPStrategy"):
            assert outcome == "cannot load MPI library", name  # others' strategies are left alone
        else:
            assert outcome.endswith("Strategy"), name
    (said,) = [line for line in result["lines"] if "MPIEnvironment" in line]
    assert "cannot load MPI library" in said
    assert "HINT: install an MPI library" in said
    assert "problem: MPIEnvironment" in result["asked"]  # by `doctor`, in a process of its own
    assert result["asked"].count("problem: ") == 1
