# SPDX-License-Identifier: Apache-2.0
"""Jobs with two replicas of a sharded model, one of which loses a rank."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightning_sagemaker._compat.fsdp_groups import CAN_BEGIN_AGAIN
from tests.chaos.recovery import Setting, compare, rows, run, start
from tests.conftest import PATIENCE, fork_ranks

SETTING = Setting(4, shard=2, depth=2, samples=600, epochs=2)
WRONG = Path(__file__).parent / "wrong_training.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
needs_reset = pytest.mark.skipif(not CAN_BEGIN_AGAIN, reason="this torch cannot resume FSDP after a failed step")


@needs_reset
def test_the_other_replica_continues_and_gives_the_state_back(tmp_path):
    assert run(SETTING, tmp_path / "alone", None).code == 0, (tmp_path / "alone/output.txt").read_text()
    outcome = run(SETTING, tmp_path / "job", random.Random(1), 2, ["kill the first", "kill"])
    said = (tmp_path / "job/output.txt").read_text()
    assert (outcome.code, outcome.problems) == (0, []), said
    assert compare(tmp_path / "alone", tmp_path / "job", SETTING, 2) == []
    assert max(gap for _, gap in outcome.gaps) < 5 * PATIENCE
    assert "2 of 4 ranks continue" in said
    assert "4 of 4 ranks continue" in said
    assert "Resuming from step" not in said  # all of it was in the other replica's memory
    assert said.count("MemoryCheckpoint makes no copies") == 1
    events = [row["event"] for row in rows(tmp_path / "job/recovery.jsonl")]
    assert events.count("lost") == 4  # a rank is lost with its replica


@needs_reset
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_trains_as_torchs_own_hybrid_sharding(tmp_path):
    """Under torchrun the same script is FSDP2 on a mesh of two dimensions, whose sums have another order."""
    (tmp_path / "stock").mkdir()
    options = ["--shard", "2", "--depth", "2", "--samples", "600", "--epochs", "2"]
    fork_ranks(SETTING.program, tmp_path / "stock", *options, processes=4, timeout=120)
    assert run(SETTING, tmp_path / "job", random.Random(1), 2, ["kill"]).code == 0
    losses = []
    for folder in (tmp_path / "stock", tmp_path / "job"):
        found = [row for path in sorted(folder.glob("rank-*.jsonl")) for row in rows(path)]
        losses.append({(row["epoch"], row["batch"], tuple(row["samples"])): row["loss"] for row in found})
    assert losses[0].keys() == losses[1].keys()
    assert max(abs(losses[0][key] - losses[1][key]) for key in losses[0]) < 1e-6
    stock, job = (torch.load(folder / "weights-0.pt") for folder in (tmp_path / "stock", tmp_path / "job"))
    assert max((stock[name] - value).abs().max().item() for name, value in job.items()) < 1e-6


@needs_reset
@pytest.mark.slow
def test_a_module_that_shards_itself_is_restarted_instead(tmp_path):
    job = start(SETTING, tmp_path, training=WRONG, words=["shards itself"])
    try:
        assert job.wait(60 * PATIENCE) == 0
    except subprocess.TimeoutExpired:
        job.kill()
        raise
    assert "all ranks are restarted: configure_model calls fully_shard itself" in (tmp_path / "output.txt").read_text()
