# SPDX-License-Identifier: Apache-2.0
"""Ranks are lost in a script that trains several times: compared with the same script under torchrun and stock DDP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "several_fits.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")


def _start(folder: Path, program: list[str], strategy: str, *resumes: str) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "output.txt").open("wb") as output:
        command = [sys.executable, "-m", *program, str(SCRIPT), str(folder), strategy, *resumes]
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def _supervised(folder: Path) -> subprocess.Popen[bytes]:
    return _start(folder, ["lightning_sagemaker.cli", "supervise", "--processes", "2"], "sagemaker")


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("stock") / "job"
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d"]
    torchrun += ["--rdzv-endpoint", "127.0.0.1:0"]
    assert _start(folder, torchrun, "ddp").wait(120) == 0, (folder / "output.txt").read_text()
    return json.loads((folder / "found.json").read_text())


def _kill(folder: Path, process: subprocess.Popen[bytes], rank: int, stage: str, step: int) -> None:
    file, deadline = folder / f"rank-{rank}.jsonl", time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        rows = [json.loads(line) for line in file.read_text().splitlines()[:-1]] if file.exists() else []
        if any(row[0] == stage and row[1] >= step for row in rows):
            os.kill(rows[-1][2], signal.SIGKILL)
            return
        time.sleep(0.01)
    raise AssertionError((folder / "output.txt").read_text())


@pytest.mark.parametrize(
    "losses",
    [
        [(1, "first", 5), (0, "third", 10)],
        pytest.param([(0, "first", 5), (1, "third", 10)], marks=pytest.mark.slow),
        pytest.param([(1, "first", 39)], marks=pytest.mark.slow),  # at its end: there is no replacement
        pytest.param([(0, "second", 45)], marks=pytest.mark.slow),
    ],
)
def test_what_follows_a_loss_is_the_same(tmp_path, stock, losses):
    """Tests see each sample once, whoever is left; in later fits ranks are not replaced, as they could not join."""
    process = _supervised(tmp_path / "job")
    for loss in losses:
        _kill(tmp_path / "job", process, *loss)
    assert process.wait(60) == 0, (tmp_path / "job/output.txt").read_text()
    assert json.loads((tmp_path / "job/found.json").read_text()) == stock


def test_a_rank_that_fails_after_the_training_fails_the_job(tmp_path):
    script = tmp_path / "failing.py"
    text = SCRIPT.read_text().replace(
        "    if third.is_global_zero:", "    if third.global_rank == 1:\n        sys.exit(3)\n    else:"
    )
    assert "sys.exit(3)" in text
    script.write_text(text)
    (tmp_path / "job").mkdir()
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--processes", "2", str(script)]
    done = subprocess.run([*command, str(tmp_path / "job"), "sagemaker"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert "rank 1 ended with exit code 3 after the first fit, and is not replaced." in done.stderr


@pytest.mark.slow  # the ranks that are left wait a minute
def test_a_job_that_ends_for_want_of_ranks_goes_on_in_the_same_fit(tmp_path, stock):
    """Its last checkpoint is that of the fit, in the folder that the script resumes from."""
    folder, kept = tmp_path / "job", tmp_path / "kept"
    program = ["lightning_sagemaker.cli", "supervise", "--processes", "2", "--minimum", "2", "--max-restarts", "0"]
    process = _start(folder, program, "sagemaker", str(kept))
    _kill(folder, process, 1, "third", 10)
    assert process.wait(120) != 0
    output = (folder / "output.txt").read_text()
    assert f"Wrote {kept}/auto-fit=2-step=" in output, output
    (folder / "rank-0.jsonl").unlink()
    assert _start(folder, program, "sagemaker", str(kept)).wait(120) == 0, (folder / "output.txt").read_text()
    rows = [json.loads(line) for line in (folder / "rank-0.jsonl").read_text().splitlines()]
    assert rows[0][:2] == ["first", 0]
    assert min(step for stage, step, _ in rows if stage == "third") >= 10
    assert json.loads((folder / "found.json").read_text()) == stock
