# SPDX-License-Identifier: Apache-2.0
"""Makes a process look as if Open MPI's mpirun had started it; what a real one starts is in test_aws_samples.py."""

import os


def be_started_by_mpirun() -> None:
    """Put Open MPI's variables in the place of torchrun's."""
    del os.environ["TORCHELASTIC_RUN_ID"]
    for name in ("RANK", "LOCAL_RANK"):
        os.environ[f"OMPI_COMM_WORLD_{name}"] = os.environ[name]
    for name in ("SIZE", "LOCAL_SIZE"):
        os.environ[f"OMPI_COMM_WORLD_{name}"] = os.environ[name.replace("SIZE", "WORLD_SIZE")]
