# SPDX-License-Identifier: Apache-2.0
"""Simulated ranks against recorded ones of the real containers, for the launchers that need several real hosts."""

import io
import json
import sys
from pathlib import Path

import pytest

from lightning_sagemaker.launch import run_local_cluster
from tests.job.test_job_recorded import RUNS, environment_of
from tests.launch.real_containers import OPEN_MPI

WRITE = "import json, os; json.dump(dict(os.environ), open(os.environ['SM_OUTPUT_DATA_DIR'] + '/' + {name}, 'w'))"
LAUNCHED = "os.environ.get('RANK', os.environ.get('OMPI_COMM_WORLD_RANK', 'x'))"

# Recording -> contract, distribution, processes per host.
CASES = {
    "smddp2": ("toolkit", "smddp", 2),
    "mpi2": ("toolkit", "mpi", 2),
    "td2": ("toolkit", "torch_distributed", 2),
    "none2": ("toolkit", "none", 1),
    "v3td": ("modeltrainer", "torch_distributed", 2),
    "v3mpi": ("modeltrainer", "mpi", 2),
    "v3none": ("modeltrainer", "none", 1),
}
SHARED_NETWORK = {"MASTER_ADDR", "MASTER_PORT", "SMDATAPARALLEL_SERVER_ADDR", "SM_MASTER_ADDR", "SM_MASTER_PORT"}
SHARED_NETWORK |= {"SM_NETWORK_INTERFACE_NAME"}
"""Differ because the simulated hosts share one address here; the runs of ``test_truth.py`` give each its own."""
OF_ONE_RUN = {"TRAINING_JOB_NAME", "TRAINING_JOB_ARN", "PMIX_NAMESPACE", "TORCHELASTIC_ERROR_FILE", "SM_NUM_CPUS"}


def interpreter(distribution: str) -> Path:
    """For mpirun, one with the version of the recorded runs: Open MPI 5 keeps PMIX_HOSTNAME for itself."""
    python = OPEN_MPI / "bin" / "python"
    return python if distribution in ("mpi", "smddp") and python.exists() else Path(sys.executable)


def decoded(name: str, text: str) -> object:
    value = json.loads(text) if text.startswith(("{", "[")) else text
    if isinstance(value, dict):
        for key in ("network_interface_name", "sagemaker_mpi_custom_mpi_options", "mpi_additional_options"):
            value.pop(key, None)  # the last two are what the recorded jobs asked mpirun for, which changes nothing here
    return value


@pytest.mark.parametrize("run", CASES)
def test_the_ranks_of_a_recorded_run(run, tmp_path):
    contract, distribution, processes = CASES[run]
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(WRITE.format(name=LAUNCHED))
    (tmp_path / "data").mkdir()
    first = environment_of(run, next(iter(RUNS[run]["ranks"])))
    output = io.StringIO()
    result = run_local_cluster(
        [str(interpreter(distribution)), "train.py"],
        processes_per_host=processes,
        distribution=distribution,
        contract=contract,
        root=tmp_path / "root",
        source_dir=tmp_path / "code",
        hyperparameters=json.loads(first["SM_HPS"]),
        channels={"train": tmp_path / "data"},
        timeout=60,
        output=output,
    )
    assert result.returncode == 0, output.getvalue()
    for place in RUNS[run]["ranks"]:
        host, _, rank = place.rpartition("-")
        base = tmp_path / "root" / host
        simulated = json.loads((base / "output" / "data" / rank).read_text())
        for name, text in environment_of(run, place).items():
            if name not in SHARED_NETWORK | OF_ONE_RUN:
                found = simulated.get(name, "").replace(str(base), "/opt/ml")
                assert decoded(name, found) == decoded(name, text), (place, name)
