# SPDX-License-Identifier: Apache-2.0
"""``"smp"`` with shared matrices and sharded parameters against one process, in all layouts of two and four processes."""

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import read_ranks, run_bounded, torchrun

WORKER = Path(__file__).with_name("sharded_worker.py")
NAMES = ("bert", "bert-mlm", "roberta", "distilbert", "llama", "albert")
BRIEF = ("bert", "albert")
LAYOUTS = {
    2: {
        "tensor": {"tensor_parallel_degree": 2, "ddp": True},
        "shard": {"sharded_data_parallel_degree": 2, "ddp": True},
    },
    4: {
        "tensor x shard": {"tensor_parallel_degree": 2, "sharded_data_parallel_degree": 2, "ddp": True},
        "hybrid": {"hybrid_shard_degree": 2},
        "tensor x copies, spread": {"tensor_parallel_degree": 2, "ddp": True, "placement_strategy": "spread"},
    },
}
CASES = [(processes, layout) for processes, layouts in LAYOUTS.items() for layout in layouts]
LONG = ("tensor", "shard", "tensor x shard")
"""Layouts in which all models are trained."""
TRAINED = [(*case, name) for case in CASES for name in (NAMES if case[1] in LONG else BRIEF)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    result = run_bounded([sys.executable, WORKER, folder])
    assert result.returncode == 0, result.stdout[-4000:]
    found = {1: read_ranks(folder)}
    for processes, layouts in LAYOUTS.items():
        place = tmp_path_factory.mktemp(f"sharded-{processes}")
        names = {"LAYOUTS": json.dumps(layouts), "OTHER_CHECKPOINTS": str(folder), "LONG": ",".join(LONG)}
        torchrun(WORKER, place, processes=processes, **names)
        found[processes] = read_ranks(place)
    return found


@pytest.mark.parametrize(("processes", "layout", "name"), TRAINED, ids=lambda value: str(value))
def test_training_equals_one_process(runs, processes, layout, name):
    """16 steps with clipping, momentum and a schedule; the checkpoint of rank zero is whole."""
    expected = runs[1][0][f"one/{name}"]
    ranks = [rank[f"{layout}/{name}"] for rank in runs[processes]]
    assert ranks[0]["weights"] == pytest.approx(expected["weights"], abs=1e-5)
    assert ranks[0]["momenta"] == pytest.approx(expected["momenta"], abs=1e-5)
    for found in ranks:
        assert found["strategy"] == "SMPShardedStrategy"
        assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-5)
    if layout == "tensor":
        for found in ranks:
            assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
            assert found["first"] == expected["first"]


@pytest.mark.parametrize(("processes", "layout"), CASES, ids=lambda value: str(value))
def test_a_loop_of_fabrics_equals_one_process(runs, processes, layout):
    """With an optimizer made before the parameters were sharded, clipping, and a checkpoint read in the middle."""
    expected = runs[1][0]["fabric/one"]
    for found in (rank[f"fabric/{layout}"] for rank in runs[processes]):
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)


def test_each_process_holds_a_part(runs):
    for name in NAMES:
        whole = runs[1][0][f"one/{name}"]["numbers"]
        assert [rank[f"shard/{name}"]["numbers"] for rank in runs[2]] == pytest.approx([whole / 2] * 2, rel=0.05)
        assert all(rank[f"tensor/{name}"]["numbers"] < 0.95 * whole for rank in runs[2])
        both = max(rank[f"tensor x shard/{name}"]["numbers"] for rank in runs[4])
        assert both < max(rank[f"shard/{name}"]["numbers"] for rank in runs[2])


@pytest.mark.parametrize("processes", LAYOUTS)
def test_checkpoints_of_one_process_and_of_parts_go_on_in_any_layout(runs, processes):
    expected = runs[1][0]["one/bert"]
    for name in ("rest of one", "rest of parts", "recomputed"):
        for found in (rank[name] for rank in runs[processes]):
            assert found["metrics"]["val_loss"] == pytest.approx(expected["metrics"]["val_loss"], abs=1e-5)
    assert runs[processes][0]["parts"].count(".distcp") == processes


def test_bad_input_is_one_error_on_every_rank(runs):
    for processes in LAYOUTS:
        for found in (rank["refusals"] for rank in runs[processes]):
            assert "holds no model of transformers" in found["plan"]
            assert "cannot be combined" in found["both"]
            assert "shard degree 3" in found["shards"]
            assert all("HINT" in message for message in found.values() if message)
    assert all("num_attention_heads=2" in rank["refusals"]["heads"] for rank in runs[4])
