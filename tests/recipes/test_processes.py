# SPDX-License-Identifier: Apache-2.0
"""Every recipe on 2 and 4 processes equals itself on one: losses, metrics, predictions."""

import csv
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import Runs, fork_ranks
from tests.recipes import worker

GOLDEN = {
    "albert": {1: 5.9991, 6: 5.9474},
    "questions": {1: 3.8481, 6: 3.9589},
    "classes": {1: 1.8485, 6: 4.4154},
}
"""Step -> loss on one process, measured with torch 2.13 on x86."""


CUT = ("questions", "classes")
"""Recipes that are also run as two pipeline stages; ALBERT's layers are one block."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory, text_file):
    """Number of processes, smp (two pipeline stages) or tensor (shared matrices) -> folder.

    Two processes accumulate two micro-batches.
    """
    base = tmp_path_factory.mktemp("processes")
    torch.set_num_threads(1)
    script, shared = Path(worker.__file__), (base / "cache", text_file)
    stages = {"SM_HP_MP_PARAMETERS": json.dumps({"partitions": 2, "microbatches": 2, "ddp": True})}
    stages["LIGHTNING_SAGEMAKER_TEST_RECIPES"] = ",".join(CUT)
    matrices = {"SM_HP_MP_PARAMETERS": json.dumps({"tensor_parallel_degree": 2})}
    options = {2: ("--gradient_accumulation_steps", 2, "--val_check_interval", 6)}

    def make(layout):
        place = base / str(layout)
        if layout == 1:
            worker.run(place, *shared, "--strategy", "auto")
            return place
        assert found[1]  # the cache is its work
        variables = {"smp": stages, "tensor": matrices}.get(layout, {})
        processes = layout if isinstance(layout, int) else 2
        fork_ranks(script, place, *shared, *options.get(layout, ()), processes=processes, PYTHONPATH=".", **variables)
        return place

    found = Runs(make)
    return found


def history(run: Path) -> dict[tuple[int, str], float]:
    """(step, name) -> value, without rates."""
    values = {}
    with (run / "output" / "history" / "metrics.csv").open() as rows:
        for row in csv.DictReader(rows):
            for name, value in row.items():
                if value and not name.endswith("_per_second") and name not in ("step", "epoch", "data_wait"):
                    values[int(row["step"]), name] = float(value)
    return values


@pytest.mark.parametrize("name", worker.RUNS)
def test_losses_are_those_recorded(runs, name):
    found = history(runs[1] / name)
    assert {step: found[step, "loss"] for step in GOLDEN[name]} == pytest.approx(GOLDEN[name], abs=0.02)


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("name", worker.RUNS)
def test_training_and_validation_equal_one_process(runs, name, processes):
    one, several = history(runs[1] / name), history(runs[processes] / name)
    assert {step for step, key in one if key == "loss"} == set(range(1, worker.STEPS + 1))
    assert any(key.startswith("val_") for _, key in one)
    assert several == pytest.approx(one, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", CUT)
def test_pipeline_stages_equal_one_process(runs, name):
    one, cut = history(runs[1] / name), history(runs["smp"] / name)
    assert cut == pytest.approx(one, rel=1e-4, abs=1e-5)
    facts = json.loads((runs["smp"] / name / "output" / "metrics.json").read_text())
    assert facts["strategy"] == "SMPStrategy"
    weights = {layout: load_file(runs[layout] / name / "model" / "model.safetensors") for layout in (1, "smp")}
    assert weights[1].keys() == weights["smp"].keys()
    for key, value in weights[1].items():
        assert torch.allclose(weights["smp"][key], value, atol=1e-4), key


@pytest.mark.parametrize("name", worker.RUNS)
def test_shared_matrices_equal_one_process(runs, name):
    one, shared = history(runs[1] / name), history(runs["tensor"] / name)
    assert shared == pytest.approx(one, rel=1e-4, abs=1e-5)
    facts = json.loads((runs["tensor"] / name / "output" / "metrics.json").read_text())
    assert facts["strategy"] == "SMPShardedStrategy"
    weights = {layout: load_file(runs[layout] / name / "model" / "model.safetensors") for layout in (1, "tensor")}
    assert weights[1].keys() == weights["tensor"].keys()
    for key, value in weights[1].items():
        # Partial sums are added in another order, and Adam makes steps of where the gradient is nothing but rounding: so it
        # is for a bias of all positions' logits, which no loss of a softmax over positions depends on.
        bound = 1e-4 if key == "qa_outputs.bias" else 1e-5
        assert float((weights["tensor"][key] - value).abs().mean()) < bound, key


@pytest.mark.parametrize("processes", [2, 4, "smp", "tensor"])
def test_answers_and_scores_are_the_same_to_the_last_digit(runs, processes):
    one, several = (runs[n] / "questions" / "output" for n in (1, processes))
    answers = json.loads((one / "predictions.json").read_text())
    assert len(answers) == 45
    assert json.loads((several / "predictions.json").read_text()) == answers
    scores = ("val_exact", "val_f1", "val_HasAns_f1", "val_NoAns_f1", "val_total")
    metrics = [json.loads((folder / "metrics.json").read_text()) for folder in (one, several)]
    assert [metrics[0][name] for name in scores] == [metrics[1][name] for name in scores]


@pytest.mark.parametrize("processes", [2, 4, "smp", "tensor"])
def test_classes_are_predicted_once_each_and_in_order(runs, processes):
    tables = []
    for number in (1, processes):
        with (runs[number] / "classes" / "output" / "predictions.csv").open() as rows:
            tables.append(list(csv.DictReader(rows)))
    assert [int(row["index"]) for row in tables[0]] == list(range(75))
    assert [(row["index"], row["prediction"]) for row in tables[1]] == [
        (r["index"], r["prediction"]) for r in tables[0]
    ]
    for one, several in zip(*tables, strict=True):
        chances = [{k: float(v) for k, v in row.items() if k.startswith("p_")} for row in (one, several)]
        assert chances[1] == pytest.approx(chances[0], abs=1e-4)
        assert sum(chances[0].values()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("processes", [2, 4])
def test_weights_are_those_of_one_process(runs, processes):
    for name in worker.RUNS:
        states = [
            torch.load(runs[number] / name / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
            for number in (1, processes)
        ]
        for key, value in states[0].items():
            # Relative to the whole: Adam turns the rounding of a gradient that is nearly zero into a step.
            difference = (states[1][key] - value).norm() / value.norm().clamp(min=1)
            assert difference < 1e-3, (name, key)
