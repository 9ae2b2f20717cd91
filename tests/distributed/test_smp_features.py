# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Lightning, optimizers, BatchNorm and uneven batches under ``"smp"``: as in one process, or refused."""

from pathlib import Path

import pytest

from tests.conftest import Runs, fork_ranks, read_ranks

WORKER = Path(__file__).with_name("smp_features_worker.py")
CALLBACKS = ("plain", "accumulate", "finetune", "backbone", "watchers")
AVERAGES = ("swa", "mean", "ema")
UNEVEN = ("uneven", "few", "one sample", "uneven, accumulated")
ROWS = ("Row", "Direct", "Skips")
OTHERS = ("Tables", "InPlace", "Checkpointed", "Gathers", "finder", "AdamW", "Adafactor")
STAGES = (*CALLBACKS, *AVERAGES, *UNEVEN, *ROWS, *OTHERS)
LAYOUTS = {"one": ("one", 0), "stages": ("stages", 2), "shards": ("shards", 2), "four": ("stages", 4)}
FOUR = pytest.param("four", marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    def make(name):
        folder = tmp_path_factory.mktemp(name)
        layout, processes = LAYOUTS[name]
        fork_ranks(WORKER, folder, layout, processes=processes, timeout=240 if processes < 4 else 900)
        return read_ranks(folder)

    return Runs(make)


@pytest.mark.parametrize("layout", ["stages", FOUR])
@pytest.mark.parametrize("scenario", STAGES)
def test_training_in_stages_equals_one_process(runs, layout, scenario):
    """Losses of each step, metrics, weights in the end; of averages, what is in a checkpoint and training on from it."""
    expected = runs["one"][0][scenario]
    for found in (rank[scenario] for rank in runs[layout]):
        if found is None:  # fewer places to cut than stages
            continue
        assert found.keys() == expected.keys()
        for name in expected if (layout, scenario) != ("four", "Gathers") else ("weights", "metrics"):
            assert found[name] == pytest.approx(expected[name], abs=1e-5), name  # replicas: each has losses of its own


@pytest.mark.parametrize("scenario", [*CALLBACKS, "AdamW"])
def test_training_in_shards_equals_one_process(runs, scenario):
    expected = runs["one"][0][scenario]
    for found in (rank[scenario] for rank in runs["shards"]):
        assert found["weights"] == pytest.approx(expected["weights"], abs=1e-5)
        assert found["metrics"]["val_loss"] == pytest.approx(expected["metrics"]["val_loss"], abs=1e-5)
        assert (found["steps"], found["epochs"]) == (expected["steps"], expected["epochs"])
        if scenario == "watchers":
            assert found["seen"] == expected["seen"]


@pytest.mark.parametrize("layout", ["stages", FOUR])
@pytest.mark.parametrize("model", ROWS[:2])
def test_models_without_a_list_of_blocks_predict_as_one_process(runs, layout, model):
    expected = runs["one"][0][f"{model} predicts"]
    for rank in runs[layout]:
        assert rank[f"{model} predicts"] == pytest.approx(expected, abs=1e-5)


def test_the_searched_rate_is_that_of_one_process(runs):
    assert runs["one"][0]["finder"]["lr"] is not None
    assert len(runs["one"][0]["finder"]["searched"]) > 10


def test_averages_differ_from_what_is_averaged(runs):
    for name in AVERAGES:
        found = runs["one"][0][name]
        assert found["stored"] != pytest.approx(found["kept"], abs=1e-4)


@pytest.mark.parametrize("layout", ["stages", FOUR])
def test_an_error_leaves_a_checkpoint_of_the_whole_model(runs, layout):
    for found in (rank["failed"] for rank in runs[layout]):
        assert "the third step fails" in found["error"]
        assert found["saved"] == pytest.approx(runs["one"][0]["failed"]["saved"], abs=1e-5)


def test_batch_norm_sees_microbatches_and_says_so_once(runs):
    """Also in the stem and in the head: the running statistics are those of the stage that computes them."""
    expected = runs["one"][0]["batch norm"]
    assert expected["weights"]["head.1.num_batches_tracked"] == 24
    for rank, found in enumerate(runs["stages"]):
        assert found["batch norm"]["weights"] == pytest.approx(expected["weights"], abs=1e-5)
        assert found["batch norm"]["val_loss"] == pytest.approx(expected["val_loss"], abs=1e-5)
        assert len(found["batch norm"]["said"]) == (rank == 0)
    assert runs["stages"][0]["batch norm"]["said"][0].startswith("stem.1 and 5 more: BatchNorm normalizes with")


@pytest.mark.parametrize("layout", ["stages", "shards", FOUR])
def test_what_cannot_work_is_refused_before_training(runs, layout):
    messages = {"pruning": "ModelPruning was given", "batch size": "BatchSizeFinder was given"}
    if layout == "shards":
        messages |= {"swa": "StochasticWeightAveraging", "mean": "WeightAveraging", "ema": "EMAWeightAveraging"}
        messages |= {"finder": "LearningRateFinder was given"}
    else:
        messages |= {
            "lbfgs": "LBFGS was chosen",
            "reentrant": "use_reentrant=True",
            "elsewhere": "validation_step does not call the module",
            "layers": "the step uses (add) a value which an earlier pipeline stage has computed",
            "sync": "sync_batchnorm=True",
        }
        messages |= {"parts": "save_distributed_checkpoint=True was set with a callback"}
    for found in (rank["refusals"] for rank in runs[layout]):
        for name, message in messages.items():
            assert message in found[name]
            assert "HINT" in found[name]
        assert found["good"] is None
