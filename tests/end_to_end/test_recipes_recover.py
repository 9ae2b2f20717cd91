# SPDX-License-Identifier: Apache-2.0
"""Recipes under ``supervise``, whose ranks are killed: the model is that of the job that was left alone, to the last bit."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = """
import os, sys
from pathlib import Path
pid = Path(sys.argv[1]) / f"pid-{os.environ['RANK']}"
pid.with_suffix(".new").write_text(str(os.getpid()))
pid.with_suffix(".new").rename(pid)
from lightning_sagemaker.cli import main
sys.exit(main(sys.argv[2:]))
"""
KILLS = 4


def run(folder: Path, recipe: list[str], kills: int, script: str = SCRIPT) -> None:
    """Train, and kill a rank whenever all are there again."""
    folder.mkdir()
    (folder / "script.py").write_text(script)
    events, rng = folder / "events.jsonl", random.Random(0)
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--processes", "2"]
    command += ["--events", str(events)]
    command += [str(folder / "script.py"), str(folder), "run", *recipe, "--run_dir", str(folder / "run")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(kills):
            deadline = time.monotonic() + 60
            while not _all_train(events) and time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.05)
            time.sleep(rng.uniform(0, 1.0))
            assert process.poll() is None, "it was over before the kills were"
            os.kill(int((folder / f"pid-{rng.choice([0, 1])}").read_text()), signal.SIGKILL)
            time.sleep(0.5)
        assert process.wait(200) == 0, (folder / "log").read_text()[-3000:]
    finally:
        process.kill()


def _all_train(events: Path) -> bool:
    rows = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    last = next((row for row in reversed(rows) if row["event"] in ("resumed", "lost")), {})
    return last.get("ranks") == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
@pytest.mark.parametrize("recipe", ["albert-mlm", "bert-qa", "sequence-classification"])
def test_a_recipe_loses_no_step(tmp_path, recipe):
    options = [recipe, "--config", "tiny.yaml", "--trainer.max_steps", "300", "--trainer.log_every_n_steps", "1"]
    options += ["--global_batch_size", "24", "--data.num_workers", "1", "--trainer.val_check_interval", "50"]
    run(tmp_path / "alone", options, 0)
    run(tmp_path / "struck", options, KILLS)
    assert (tmp_path / "struck" / "log").read_text().count("is lost after step") == KILLS
    alone, struck = (load_file(tmp_path / name / "run" / "model" / "model.safetensors") for name in ("alone", "struck"))
    assert all(torch.equal(alone[name], struck[name]) for name in alone)
    evaluated = [_evaluated((tmp_path / name / "log").read_text()) for name in ("alone", "struck")]
    assert evaluated[0] == evaluated[1] != set()


def _evaluated(log: str) -> set[str]:
    """What was logged of validations and of the test."""
    return set(re.findall(r"^step=\d+ epoch=\d+ (?:val|test)_.*$", log, re.MULTILINE))
