# SPDX-License-Identifier: Apache-2.0
"""A launch with ``recovery: in_job`` is rehearsed on two hosts, and processes of it are killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.chaos.recovery import Setting, run
from tests.chaos.recovery_compare import compare, rows

SETTING = Setting(4, samples=1200, epochs=2)
TRAINING = Path(__file__).parents[1] / "chaos" / "recovery_training.py"
SCRIPT = """
import runpy, sys
sys.argv[1:1] = [{folder!r}]
runpy.run_path({training!r}, run_name="__main__")
"""


def _steps(folder: Path) -> int:
    return sum(row[0] == "step" for row in rows(folder / "steps.jsonl"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
def test_killed_processes_cost_the_job_nothing(tmp_path):
    assert run(SETTING, tmp_path / "alone", None).code == 0
    folder, source = tmp_path / "job", tmp_path / "source"
    folder.mkdir()
    source.mkdir()
    (source / "train.py").write_text(SCRIPT.format(folder=str(folder), training=str(TRAINING)))
    job = {
        "entry_point": "train.py", "source_dir": str(source), "instance_type": "ml.m5.xlarge", "instance_count": 2,
        "distribution": {"torch_distributed": {"enabled": True, "processes_per_host": 2}}, "recovery": "in_job",
        "hyperparameters": {"epochs": SETTING.epochs, "samples": SETTING.samples},
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "launch", "--config", str(tmp_path / "job.yaml")]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--rehearse", "--rehearse-root", str(tmp_path / "root")], stdout=log, stderr=subprocess.STDOUT
        )
    for rank, step in ((3, 8), (0, 25)):
        deadline = time.monotonic() + 90
        while _steps(folder) < step:
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.05)
        os.kill(int((folder / f"pid-{rank}").read_text()), signal.SIGKILL)
    output = (tmp_path / "log").read_text
    assert process.wait(120) == 0, output()[-3000:]
    assert output().count("starting a replacement") == 2
    assert "rehearsal        passed" in output()
    assert compare(tmp_path / "alone", folder, SETTING, 2) == []
