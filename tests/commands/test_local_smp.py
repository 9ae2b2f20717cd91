# SPDX-License-Identifier: Apache-2.0
"""``lightning-sagemaker local --distribution smp``: a job with ``mp_parameters``, as the containers start it."""

import json
import sys
from pathlib import Path

import pytest

from lightning_sagemaker import cli
from lightning_sagemaker.launch import LocalClusterError, run_local_cluster
from tests.conftest import run_bounded

SCRIPT = Path(__file__).with_name("train_roberta.py")
PARAMETERS = {
    "partitions": 4,
    "microbatches": 4,
    "placement_strategy": "spread",
    "pipeline": "interleaved",
    "optimize": "speed",
    "ddp": True,
}


@pytest.mark.slow  # eight processes import what they need
def test_a_job_with_eight_processes_trains_as_one_process_would(tmp_path):
    """RoBERTa-large's shape on one host with eight ranks by MPI: two copies of four partitions, of an unchanged script."""
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "local", "--hosts", 1, "--processes-per-host", 8]
    command += ["--distribution", "smp", "--mp-parameters", json.dumps(PARAMETERS), "--root", tmp_path / "job"]
    result = run_bounded([*command, "--", sys.executable, SCRIPT], timeout=300)
    assert result.returncode == 0, result.stdout[-6000:]
    found = json.loads((tmp_path / "job" / "algo-1" / "model" / "found.json").read_text())
    assert (found["strategy"], found["world_size"], found["replicas"]) == ("SMPStrategy", 8, 2)
    assert json.loads(found["parameters"]) == PARAMETERS
    assert found["arguments"][0] == "--mp_parameters"
    assert "partitions=4" in found["arguments"][1].split(",")
    assert "strategy='sagemaker' is 'smp' here" in result.stdout
    alone = run_bounded([sys.executable, SCRIPT], SM_MODEL_DIR=str(tmp_path))
    assert alone.returncode == 0, alone.stdout[-4000:]
    expected = json.loads((tmp_path / "found.json").read_text())
    assert expected["world_size"] == 1
    assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)


def test_parameters_are_demanded():
    with pytest.raises(LocalClusterError, match="mp_parameters is None.*HINT"):
        run_local_cluster([sys.executable, str(SCRIPT)], distribution="smp")


def test_parameters_that_are_no_json_are_refused(capsys):
    words = ["--distribution", "smp", "--mp-parameters", "partitions=2", "--", "python", "x.py"]
    assert cli.main(["local", *words]) == 2
    assert "lightning-sagemaker local: error: --mp-parameters 'partitions=2' is not JSON" in capsys.readouterr().err
