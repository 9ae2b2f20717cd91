# SPDX-License-Identifier: Apache-2.0
"""``"smp"`` with tensor parallelism and sharded parameters against one process, in all layouts of two and four processes."""

import json
from pathlib import Path

import pytest

from tests.conftest import Runs, fork_ranks, read_ranks
from tests.skips import needs_shards

pytestmark = needs_shards
WORKER = Path(__file__).with_name("sharded_worker.py")
NAMES = ("bert", "bert-mlm", "roberta", "distilbert", "llama", "albert")
BRIEF = ("bert", "bert-mlm", "albert")
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
LONG = ("tensor", "tensor x shard")
"""Layouts in which all models are trained: tensor parallelism has a plan for each; sharding knows modules only."""
OF_TWO = ("bert", "bert-mlm", "llama", "albert")
"""All kinds of plans; that of RoBERTa is BERT's, and DistilBERT is trained by four."""


def names_of(processes, layout):
    """The models that are trained."""
    return BRIEF if layout not in LONG else NAMES if processes == 4 else OF_TWO


TRAINED = [(*case, name) for case in CASES for name in names_of(*case)]


def slow_with_four(cases):
    """Four processes on two cores take minutes: `make test-slow` runs them."""
    whole = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=pytest.mark.slow if case[0] == 4 else ()) for case in whole]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    alone = tmp_path_factory.mktemp("one")
    fork_ranks(WORKER, alone, processes=0)

    def make(processes):
        place = tmp_path_factory.mktemp(f"sharded-{processes}")
        trained = json.dumps({layout: names_of(processes, layout) for layout in LAYOUTS[processes]})
        names = {"LAYOUTS": json.dumps(LAYOUTS[processes]), "OTHER_CHECKPOINTS": str(alone), "TRAINED": trained}
        fork_ranks(WORKER, place, processes=processes, timeout=600, **names)  # 12 models are trained
        return read_ranks(place)

    found = Runs(make)
    found[1] = read_ranks(alone)
    return found


@pytest.mark.parametrize(("processes", "layout", "name"), slow_with_four(TRAINED), ids=lambda value: str(value))
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


@pytest.mark.parametrize(("processes", "layout"), slow_with_four(CASES), ids=lambda value: str(value))
def test_a_loop_of_fabrics_equals_one_process(runs, processes, layout):
    """With an optimizer made before the parameters were sharded, clipping, and a checkpoint read in the middle."""
    expected = runs[1][0]["fabric/one"]
    for found in (rank[f"fabric/{layout}"] for rank in runs[processes]):
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)


def test_each_process_holds_a_part(runs):
    for name in OF_TWO:
        whole = runs[1][0][f"one/{name}"]["numbers"]
        shards = [rank[f"shard/{name}"]["numbers"] for rank in runs[2] if name in BRIEF]
        assert shards == pytest.approx([whole / 2] * len(shards), rel=0.05)
        assert all(rank[f"tensor/{name}"]["numbers"] < 0.95 * whole for rank in runs[2])


@pytest.mark.slow
def test_sharing_and_sharding_together_hold_less(runs):
    for name in BRIEF:
        both = max(rank[f"tensor x shard/{name}"]["numbers"] for rank in runs[4])
        assert both < max(rank[f"shard/{name}"]["numbers"] for rank in runs[2])


@pytest.mark.parametrize("processes", slow_with_four(LAYOUTS))
def test_checkpoints_of_one_process_and_of_parts_go_on_in_any_layout(runs, processes):
    expected = runs[1][0]["one/bert"]
    for name in ("rest of one", "rest of parts", "recomputed"):
        for found in (rank[name] for rank in runs[processes]):
            assert found["metrics"]["val_loss"] == pytest.approx(expected["metrics"]["val_loss"], abs=1e-5)
    assert runs[processes][0]["parts"].count(".distcp") == processes


@pytest.mark.parametrize("processes", slow_with_four(LAYOUTS))
def test_bad_input_is_one_error_on_every_rank(runs, processes):
    for found in (rank["refusals"] for rank in runs[processes]):
        assert "contains no transformers model" in found["plan"]
        assert "cannot be combined" in found["both"]
        assert "shard degree 3" in found["shards"]
        assert all("HINT" in message for message in found.values() if message)
        assert processes == 2 or "num_attention_heads=2" in found["heads"]
