# SPDX-License-Identifier: Apache-2.0
"""Collectives that a script calls in a step, while a rank is missing: stock DDP's values, and no hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import fork_ranks
from tests.recovery.logged import logged

SCRIPT = Path(__file__).parent / "collectives_in_step.py"


def run(folder: Path, program: list[str], *arguments: str) -> tuple[list[dict[str, Any]], str]:
    folder.mkdir()
    command = [sys.executable, "-m", *program, str(SCRIPT), str(folder), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(3)], said


def test_collectives_are_refused_and_logged_values_added():
    fork_ranks(Path(__file__).parent / "step_collectives_worker.py", processes=2)


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
def test_steps_with_collectives_equal_stock_ddp(tmp_path):
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    supervise = ["lightning_sagemaker.cli", "supervise", "--processes", "3"]
    stock, _ = run(tmp_path / "stock", torchrun, "ddp")
    losses = ("3:1:start", "18:2:start", "26:1:start", "28:1:gradients", "30:2:end")
    ours, said = run(tmp_path / "ours", supervise, "smddp", *losses)
    assert "2 of 3 ranks continue after step 3" in said  # the logged means are those of all shards
    assert "2 of 3 ranks continue after step 18" in said  # until the hook that gathers
    assert "3 of 3 ranks continue after step 28" in said  # the step whose gradients a hook was about to gather
    assert "3 of 3 ranks continue after step 30" in said  # after it, with its hooks again
    assert said.count("calls allgather, which needs all 3 ranks") == 1
    assert len(ours[0]["rows"]) == len(stock[0]["rows"])
    for own, right in zip(ours[0]["rows"], stock[0]["rows"], strict=True):
        assert own == pytest.approx(right, abs=1e-6)
    # Also of the steps whose hooks were called again.
    assert logged(tmp_path / "ours") == pytest.approx(logged(tmp_path / "stock"), abs=1e-6)
    for rank in ours:
        for name, value in stock[0]["weights"].items():
            torch.testing.assert_close(torch.tensor(rank["weights"][name]), torch.tensor(value))
