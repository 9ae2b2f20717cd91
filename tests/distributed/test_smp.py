# SPDX-License-Identifier: Apache-2.0
"""``"smp"`` against one process, over the Trainer's whole surface: two and four stages, and two replicas of two stages.

Each launch runs every scenario of smp_worker.py once; the tests compare what the ranks wrote.
"""

from pathlib import Path

import pytest

from tests.conftest import Runs, fork_ranks, read_ranks

WORKER = Path(__file__).with_name("smp_worker.py")
FITS = ["bert", "bert-mlm", "gpt2", "accumulate"]


LAUNCHES = {"two": (2, 1, "one"), "tensor": (2, 2, "two"), "replicas": (2, 1, "tensor"), "four": (4, 1, "replicas")}
"""Name -> stages, processes of a tensor parallel group, and the launch from whose checkpoint it goes on."""

FOUR, REPLICAS, TENSOR = (pytest.param(name, marks=pytest.mark.slow) for name in ("four", "replicas", "tensor"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One process; then two stages, two of shared matrices (``tensor``), two copies of two, and four."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("one", *LAUNCHES)}

    def make(name):
        if name == "one":
            fork_ranks(WORKER, folders["one"], 1, processes=0)
        else:
            *degrees, before = LAUNCHES[name]
            assert found[before]
            options = {"OTHER_CHECKPOINT": str(folders[before] / "half.ckpt")}
            options["BRIEF"] = "1" if name in ("four", "replicas") else ""
            fork_ranks(WORKER, folders[name], *degrees, processes=2 if name == "two" else 4, **options)
        return read_ranks(folders[name])

    found = Runs(make)
    return found


def replica_losses(ranks, scenario):
    """The mean over the replicas, from the first stage of each."""
    return [sum(pair) / 2 for pair in zip(ranks[0][scenario]["losses"], ranks[2][scenario]["losses"], strict=True)]


LAYOUTS = [
    pytest.param(layout, scenario, marks=() if layout == "two" else pytest.mark.slow)
    for layout in ("two", "tensor", "four")
    for scenario in FITS
    if (layout, scenario) != ("tensor", "gpt2")
]


@pytest.mark.parametrize(("layout", "scenario"), LAYOUTS)
def test_training_equals_one_process(runs, layout, scenario):
    """20 steps with clipping, momentum and a schedule: losses, weights, metrics and hooks, on every rank."""
    expected = runs["one"][0][scenario]
    for found in (rank[scenario] for rank in runs[layout]):
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
        assert found["weights"] == pytest.approx(expected["weights"], abs=1e-5)
        assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-5)
        assert found["sizes"] == expected["sizes"]
        assert found["hooks"] == expected["hooks"]
        assert found["rows"] == expected["rows"] == 16


@pytest.mark.slow
@pytest.mark.parametrize("scenario", FITS)
def test_replicas_equal_one_process(runs, scenario):
    expected = runs["one"][0][scenario]
    assert replica_losses(runs["replicas"], scenario) == pytest.approx(expected["losses"], abs=1e-5)
    for found in (rank[scenario] for rank in runs["replicas"]):
        assert found["weights"] == pytest.approx(expected["weights"], abs=1e-5)
        for name in ("val_loss", "val_mean", "train_mean", "loss_epoch"):
            assert found["metrics"][name] == pytest.approx(expected["metrics"][name], abs=1e-5)
        assert found["rows"] == 8


@pytest.mark.parametrize("layout", ["two", TENSOR])
def test_blocks_that_run_again_compute_the_same(runs, layout):
    """Activation checkpointing, with what is kept on the host."""
    for found in (rank["recomputed"] for rank in runs[layout]):
        assert found["losses"] == pytest.approx(runs["one"][0]["recomputed"]["losses"], abs=1e-5)


@pytest.mark.parametrize("layout", ["two", TENSOR])
def test_bfloat16_is_near(runs, layout):
    expected = runs["one"][0]["bf16"]
    for found in (rank["bf16"] for rank in runs[layout]):
        assert found["losses"] == pytest.approx(expected["losses"], abs=2e-3)


@pytest.mark.parametrize("layout", ["two", TENSOR])
def test_float16_skips_the_same_steps_on_all_stages(runs, layout):
    """Where they overflow depends on rounding; that they agree does not."""
    expected = runs["one"][0]["fp16"]
    first, *others = [rank["fp16"] for rank in runs[layout]]
    assert first["scale"] < 2.0**22  # some step has overflowed
    assert first["losses"][:4] == pytest.approx(expected["losses"][:4], abs=2e-3)
    for found in others:
        assert found["scale"] == first["scale"]
        assert found["losses"] == first["losses"]
        assert found["weights"] == first["weights"]


@pytest.mark.parametrize("layout", ["two", TENSOR, REPLICAS, FOUR])
def test_checkpoints_are_whole_and_go_on_in_any_layout(runs, layout):
    expected = runs["one"][0]["checkpoints"]
    ranks = [rank["checkpoints"] for rank in runs[layout]]
    assert ranks[0]["shapes"] == expected["shapes"]
    assert ranks[0]["momenta"] == expected["momenta"]
    for name in ("rest", "rest of other"):
        if layout == "replicas":
            losses = [sum(pair) / 2 for pair in zip(ranks[0][name], ranks[2][name], strict=True)]
            assert losses == pytest.approx(expected["rest"], abs=1e-5)
        else:
            for found in ranks:
                assert found[name] == pytest.approx(expected["rest"], abs=1e-5)


@pytest.mark.parametrize("layout", ["two", TENSOR, REPLICAS, FOUR])
def test_parts_of_each_stage_go_on_in_any_layout(runs, layout):
    """Saved at step 8 while the model is cut, by two stages, by four, and by two copies of two."""
    expected = runs["one"][0]["bert-mlm"]["losses"]
    ranks = [rank["checkpoints"] for rank in runs[layout]]
    assert ranks[0]["keys"] == len(runs["one"][0]["checkpoints"]["shapes"])
    assert ranks[0]["files"] >= 2
    for name in ("rest of parts", "rest of other parts"):
        if layout == "two" and name == "rest of other parts":
            continue  # the run before was one process's
        others = [ranks[0][name]] if layout != "replicas" else [ranks[0][name], ranks[2][name]]
        losses = [sum(step) / len(others) for step in zip(*others, strict=True)]
        assert losses == pytest.approx(expected[8:16], abs=1e-5)


@pytest.mark.parametrize("layout", ["two", TENSOR])
def test_evaluation_and_prediction_on_every_rank(runs, layout):
    expected = runs["one"][0]["evaluation"]
    for found in (rank["evaluation"] for rank in runs[layout]):
        assert found["validated"][0] == pytest.approx(expected["validated"][0], abs=1e-6)
        assert found["tested"][0] == pytest.approx(expected["tested"][0], abs=1e-6)
        assert found["first"] == expected["first"]
        assert found["logits"] == pytest.approx(expected["logits"], abs=1e-5)


@pytest.mark.parametrize("layout", ["two", TENSOR, REPLICAS])
def test_callbacks_decide_alike(runs, layout):
    expected = runs["one"][0]["callbacks"]
    for found in (rank["callbacks"] for rank in runs[layout]):
        assert (found["steps"], found["best"]) == (expected["steps"], expected["best"])
        assert found["score"] == pytest.approx(expected["score"], abs=1e-5)


@pytest.mark.parametrize("layout", ["two", TENSOR, REPLICAS, FOUR])
def test_bad_input_is_one_error_on_every_rank(runs, layout):
    messages = {
        "twice": "can be called only once per step",
        "partitions": "processes, but",
        "only forward": "but this step trains",
        "pickle": "cannot be sent to the other stages",
        "by hand": "uses manual optimization",
        "zero bubble": "backward pass of each block twice",
        "unknown": "did you mean partitions",
    }
    for found in (rank["refusals"] for rank in runs[layout]):
        for name, message in messages.items():
            assert message in found[name]
            assert "HINT" in found[name]
        if layout == "tensor":
            assert "contains no transformers model. HINT" in found["plan"]
            assert found["unchanged"]
        assert "rank 0: NotADirectoryError" in found["path"]
        assert found["good"] is None
