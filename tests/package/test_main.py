# SPDX-License-Identifier: Apache-2.0
"""`python -m lightning_sagemaker SCRIPT`: an unchanged script, its names registered and its defaults set."""

import json
import sys

import pytest

from tests.conftest import run_bounded

SCRIPT = """
import json, os, sys
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
import smdistributed.dataparallel.torch.distributed
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
given = json.loads(sys.argv[1])
trainer = Trainer(accelerator="cpu", max_steps=2, **given, **quiet)
trainer.fit(BoringModel())
strategy = type(trainer.strategy).__name__
facts = [trainer.global_rank, trainer.world_size, strategy, sys.argv[1:], __name__, __file__]
sys.stdout.write(f"RESULT {json.dumps(facts)}\\n")  # one write, so that the lines of two processes do not mix
"""


def results(done) -> list[list]:
    assert done.returncode == 0, done.stdout[-4000:]
    return sorted(json.loads(line.partition("RESULT ")[2]) for line in done.stdout.splitlines() if "RESULT" in line)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_defaults_come_from_the_job(script):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run_bounded([*launcher, "-m", "lightning_sagemaker", script, "{}", "--x"])
    assert results(done) == [
        [rank, 2, "SageMakerDDPStrategy", ["{}", "--x"], "__main__", str(script)] for rank in (0, 1)
    ]


def test_explicit_arguments_win_and_lightning_starts_the_processes(script):
    given = json.dumps({"strategy": "smddp", "devices": 2})
    done = run_bounded([sys.executable, "-m", "lightning_sagemaker", script, given])
    assert results(done) == [[rank, 2, "SMDDPStrategy", [given], "__main__", str(script)] for rank in (0, 1)]


def test_a_module(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_bounded([sys.executable, "-m", "lightning_sagemaker", "-m", "train", "{}"])
    assert results(done) == [[0, 1, "SageMakerDDPStrategy", ["{}"], "__main__", str(script)]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "usage: python -m lightning_sagemaker"),
        (["--help"], "run an unchanged script"),
        (["no-such.py"], "No such script"),
        (["-m", "no_such_module"], "No module named 'no_such_module'"),
        (["-m", "no_such.module"], "No module named 'no_such.module'"),
        (["-m", "json.tool.absent"], "No module named 'json.tool.absent'"),
    ],
)
def test_usage(arguments, words):
    done = run_bounded([sys.executable, "-m", "lightning_sagemaker", *arguments])
    assert done.returncode == (0 if arguments == ["--help"] else 1)
    assert words in done.stdout
    assert "Traceback" not in done.stdout
