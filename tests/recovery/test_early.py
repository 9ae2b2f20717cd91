# SPDX-License-Identifier: Apache-2.0
"""What ranks agree on before the training is what their replacements find, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lightning_sagemaker.recovery.early import EarlyResults
from tests.recovery.test_replicas import needs_reset

PROGRAM = Path(__file__).parent / "early_program.py"


def run(folder, kind, ranks, second):
    """What the ranks have noted, and what was printed."""
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--processes", str(ranks)]
    done = subprocess.run(
        [*command, str(PROGRAM), str(folder), kind],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "died-8").exists()
    assert (folder / f"died-{second}").exists()
    files = [folder / f"rank-{rank}.jsonl" for rank in range(ranks)]
    return [json.loads(row) for file in files for row in file.read_text().splitlines()], done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
@pytest.mark.parametrize(
    ("kind", "ranks"),
    [("trainer", 2), ("fabric", 2), pytest.param("sharded", 4, marks=[pytest.mark.slow, needs_reset])],
)
def test_a_replacement_finds_what_the_ranks_had_agreed_on(kind, ranks, tmp_path):
    rows, said = run(tmp_path, kind, ranks, 20)
    steps = {step: {one for number, samples, _ in rows if number == step for one in samples} for step, *_ in rows}
    assert sorted(one for step in steps.values() for one in step) == list(range(400))
    assert {len(samples) for _, samples, _ in rows} == {8 // ranks}
    first = rows[0][2]
    assert all(facts == first for *_, facts in rows)
    assert first["world"] == ranks
    assert first["setup"] == [sum(column) for column in zip(*first["gathered"], strict=True)]
    assert sum(first["setup"]) == 400
    assert [one["each"][0] for one in first["each"]] == [str(rank) for rank in range(ranks)]
    assert first["name"]["name"].startswith("0-")
    assert "has no result" not in said


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
def test_a_replacement_finds_what_the_ranks_agreed_on_when_the_epoch_began(tmp_path):
    rows, said = run(tmp_path, "epochs", 2, 33)
    for epoch in range(2):
        found = [facts["epoch"] for step, _, facts in rows if step // 25 == epoch]
        assert len(found) == 2 * 25 + 2  # the step within which one died is repeated by both
        assert all(one == found[0] for one in found)
        assert found[0][2][1] == 2 * epoch
    assert "has no result" not in said


@pytest.fixture
def stores(group_of_one):
    """The stores of two ranks; the default group has this process only."""
    return [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]


def ask(numbers: torch.Tensor) -> list[float]:
    dist.all_reduce(numbers)
    return numbers.tolist()


def info(store: dist.TCPStore) -> dict[str, object]:
    return {"host": "127.0.0.1", "store": store.port}


def test_the_line_that_asks_gets_the_answer_of_its_time(stores, capfd):
    those, later = (EarlyResults(store) for store in stores)
    usual = dist.ProcessGroup.allreduce
    those.record(4)
    assert [ask(torch.tensor([number])) for number in (1.0, 2.0)] == [[1.0], [2.0]]
    those.end()
    assert dist.ProcessGroup.allreduce == usual
    gone = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    peers = [info(gone), info(stores[0])]
    del gone
    later.replay(3, peers)
    try:
        assert (dist.get_rank(), dist.get_world_size()) == (3, 4)
        assert [ask(torch.tensor([number])) for number in (7.0, 8.0)] == [[1.0], [2.0]]
        assert not capfd.readouterr().out
        assert ask(torch.tensor([9.0])) == [9.0]  # the others have asked twice only
        assert "rank 3 replaces another, and has no result of allreduce in test_early.py" in capfd.readouterr().out
        dist.barrier()
    finally:
        later.end()
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    last = EarlyResults(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    last.replay(5, [info(stores[1])])  # a replacement hands them on
    try:
        assert (dist.get_rank(), dist.get_world_size()) == (1, 4)  # a rank of a host that has joined
        assert ask(torch.tensor([5.0])) == [1.0]
    finally:
        last.end()


def test_more_than_a_rank_keeps_is_the_end_of_it(stores, monkeypatch):
    monkeypatch.setattr("lightning_sagemaker.recovery.early._MOST", 16)
    usual = dist.ProcessGroup.allreduce
    those = EarlyResults(stores[0])
    those.record(1)
    ask(torch.ones(2))
    assert dist.ProcessGroup.allreduce != usual
    ask(torch.ones(9))
    assert dist.ProcessGroup.allreduce == usual


def test_what_a_trainer_calls_itself_is_not_kept(stores):
    """Nor waited for: votes are asynchronous."""
    trainer = {"__name__": "lightning.pytorch.trainer.trainer", "dist": dist}
    exec("def fit(run):\n    run()\n    return dist.all_reduce(run.numbers, async_op=True)", trainer)

    def hook() -> None:
        dist.all_reduce(hook.numbers)

    hook.numbers = torch.ones(1)
    those = EarlyResults(stores[0])
    those.record(1)
    before = stores[0].num_keys()
    trainer["fit"](hook).wait()
    those.end()
    assert stores[0].num_keys() == before + 2  # what the hook has called, and the end
