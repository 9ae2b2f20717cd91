# SPDX-License-Identifier: Apache-2.0
"""torchrun starts processes again: they meet, whatever earlier ones have left in the agent's store."""

import os
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from lightning_sagemaker.collectives import restarts
from tests.conftest import run_bounded

WORKER = Path(__file__).with_name("restarts_worker.py")
AGENTS = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "1"}


@pytest.mark.parametrize("strategy", ["smddp", pytest.param("sagemaker", marks=pytest.mark.slow)])
def test_a_run_that_is_killed_twice_makes_all_its_steps(strategy, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    result = run_bounded([*launcher, str(WORKER), strategy, str(tmp_path)], timeout=200)
    assert result.returncode == 0, result.stdout[-6000:]
    lines = [tuple(map(int, line.split())) for line in (tmp_path / "steps").read_text().splitlines()]
    assert {attempt for attempt, _ in lines} == {0, 1, 2}
    assert {step for _, step in lines} == set(range(1, 13))
    assert min(step for attempt, step in lines if attempt) > 1  # they went on


@pytest.fixture
def agents_store(monkeypatch):
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    for name, value in {**AGENTS, "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}.items():
        monkeypatch.setenv(name, value)
    return store


@pytest.mark.parametrize(
    ("name", "value"), [("TORCHELASTIC_MAX_RESTARTS", "0"), ("TORCHELASTIC_USE_AGENT_STORE", "False")]
)
def test_nothing_is_done_where_nothing_can_be_left(agents_store, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with restarts.own_store(0, 2) as port:
        assert port is None
    assert dict(os.environ) == before


def test_who_does_not_come_is_said(agents_store, monkeypatch):
    monkeypatch.setattr(restarts, "_TIME_LIMIT", restarts.timedelta(seconds=0.2))
    with (
        pytest.raises(restarts.RestartError, match=r"some of the 2 processes did not join .* HINT: "),
        restarts.own_store(0, 2),
    ):
        pass
    with pytest.raises(restarts.RestartError, match="HINT: "), restarts.own_store(1, 2):
        pass


def test_answers_to_earlier_attempts_are_not_taken(agents_store, monkeypatch):
    monkeypatch.setattr(restarts, "_TIME_LIMIT", restarts.timedelta(seconds=0.3))
    for _ in range(2):  # both attempts leave a ticket and an answer behind
        with pytest.raises(restarts.RestartError), restarts.own_store(1, 2):
            pass
        with pytest.raises(restarts.RestartError), restarts.own_store(0, 2):
            pass
    with pytest.raises(restarts.RestartError), restarts.own_store(1, 2):
        pass
