# SPDX-License-Identifier: Apache-2.0
"""A recipe on two simulated hosts is interrupted as spot instances are, and started again in the same folders."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STEPS = 100
COMMAND = ["python", "-m", "lightning_sagemaker.recipes.albert_mlm.train", "--config", "tiny.yaml"]
COMMAND += ["--max_steps", str(STEPS), "--trainer.log_every_n_steps", "5", "--trainer.val_check_interval", "1000"]
COMMAND += ["--trainer.check_val_every_n_epoch", "null"]


def start(root: Path) -> subprocess.Popen:
    options = ["--hosts", "2", "--processes-per-host", "1", "--distribution", "smddp", "--root", str(root)]
    cache = ["--data.cache_dir", str(root / "cache")]
    return subprocess.Popen(
        [sys.executable, "-m", "lightning_sagemaker.cli", "local", *options, "--", *COMMAND, *cache],
        stdout=(root / "log").open("a"),
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def rank_process(root: Path, rank: int) -> int | None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            is_ours = any(str(root).encode() in variable for variable in variables)
            if (
                is_ours
                and f"RANK={rank}".encode() in variables
                and b"albert_mlm" in command
                and b"shim.py" not in command
            ):
                return int(entry.name)
    return None


def rows(root: Path) -> list[int]:
    path = root / "algo-1" / "output" / "data" / "history" / "metrics.csv"
    with path.open(newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file) if row.get("train_loss") or row.get("loss")]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_spot_interruption_loses_nothing(tmp_path):
    job = start(tmp_path)
    log = tmp_path / "log"
    deadline = time.monotonic() + 120
    while "loss=" not in log.read_text():  # the first logged step
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.3)
    pid = rank_process(tmp_path, 1)
    assert pid is not None, log.read_text()[-3000:]
    os.kill(pid, signal.SIGTERM)
    code = job.wait(60)
    text = log.read_text()
    assert code != 0, text[-3000:]
    assert "Interrupted at step" in text
    (saved,) = (tmp_path / "algo-1" / "checkpoints").glob("auto-step=*.ckpt")
    step = int(saved.stem.rpartition("=")[2])
    assert 0 < step < STEPS
    assert start(tmp_path).wait(180) == 0, log.read_text()[-3000:]
    assert f"Resuming from step {step}" in log.read_text()
    assert rows(tmp_path) == list(range(5, STEPS + 1, 5))
