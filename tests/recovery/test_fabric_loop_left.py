# SPDX-License-Identifier: Apache-2.0
"""An epoch of a loop with Fabric that was left by ``break`` is not trained on again when all ranks are started again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recovery.left_fabric import BATCHES, EPOCHS

WORKER = str(Path(__file__).with_name("left_fabric.py"))


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
def test_a_loop_that_was_left_is_over_after_a_restart(tmp_path):
    found = {}
    for how in ("ends", "stays"):
        folder = tmp_path / how
        folder.mkdir()
        supervise = ["lightning_sagemaker.cli", "supervise", "--processes", "2", WORKER, str(folder), how]
        done = subprocess.run([sys.executable, "-m", *supervise], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert ("Resuming from step" in done.stderr + done.stdout) is (how == "ends")
        assert "were not followed by optimizer.step" not in done.stderr
        found[how] = [
            [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()] for rank in (0, 1)
        ]
    assert found["ends"] == found["stays"]
    assert [len(lines) for lines in found["ends"]] == [EPOCHS * (BATCHES + 1)] * 2
