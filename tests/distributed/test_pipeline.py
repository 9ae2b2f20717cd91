# SPDX-License-Identifier: Apache-2.0
"""A model cut into stages computes what the whole one does; stages that fail do so together."""

from pathlib import Path

import pytest

from tests.conftest import Runs, fork_ranks, read_ranks
from tests.distributed.models import LAYOUTS, MODELS, models_of

WORKER = Path(__file__).with_name("pipeline_worker.py")
PROCESSES = (2, pytest.param(4, marks=pytest.mark.slow))  # four on two cores take long


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    def make(processes):
        folder = tmp_path_factory.mktemp(f"pipeline-{processes}")
        fork_ranks(WORKER, folder, processes=processes)
        return read_ranks(folder)

    return Runs(make)


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("name", MODELS)
def test_losses_gradients_and_logits_equal_those_of_the_whole_model(launched, processes, name):
    for rank in launched[processes]:
        for layout in (one for one in LAYOUTS[processes] if name in models_of(processes, one)):
            found = rank["equality"][f"{name}/{layout}"]
            assert abs(found["loss"]) < 1e-5
            assert abs(found["longer"]) < 1e-5
            assert found["gradient"] < 1e-5
            assert found["logits"] < 1e-5


@pytest.mark.slow
def test_each_stage_holds_less_with_more_stages(launched):
    for name in ("bert", "roberta", "plain"):
        two = launched[2][0]["equality"][f"{name}/interleaved/1"]["sizes"]
        four = launched[4][0]["equality"][f"{name}/interleaved/1"]["sizes"]
        assert len(two) == 2
        assert len(four) == 4
        assert max(four) <= max(two) < 0.75 * sum(two)
        assert sorted(four)[2] < min(two)
        assert sum(two) == sum(four)


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("schedule", ["interleaved", "zero_bubble"])
def test_a_failing_stage_fails_on_all_ranks_and_the_next_step_works(launched, processes, schedule):
    ranks = [rank["failures"] for rank in launched[processes]]
    last = f"pipeline stage {processes - 1} (rank {processes - 1}) failed: ZeroDivisionError"
    for number, found in enumerate(ranks):
        assert found[f"{schedule}/good"] is None
        own = "ZeroDivisionError" if number == processes - 1 else f"PipelineError: {last}"
        assert found[f"{schedule}/after"].startswith(own)
        assert "ZeroDivisionError" in found[f"{schedule}/before"]
        assert "can be called only once per step" in found[f"{schedule}/twice"]
        assert (
            "the step uses (stack) a value which an earlier pipeline stage has computed" in found[f"{schedule}/layers"]
        )
        assert "the step uses (in what it returns) a value" in found[f"{schedule}/a layer"]
        assert "HINT" in found[f"{schedule}/never"]
        assert found[f"{schedule}/after, evaluated"].startswith(own)
        assert "ZeroDivisionError" in found[f"{schedule}/before, evaluated"]
        assert "the step uses (stack)" in found[f"{schedule}/layers, evaluated"]
        assert found[f"{schedule}/good, evaluated"] is None
        assert "outside a step" in found["outside"]


def test_what_cannot_be_cut_is_refused(launched):
    found = launched[2][0]["refusals"]
    assert "ALBERT has one block that all layers share" in found["albert"]
    assert "without passing it through the blocks" in found["passes by"]
    assert "set partitions to at most 4" in found["too few blocks"]
    assert "ends=[3, 3] was set for 2 stages of 4 blocks" in found["ends"]
    assert "depends on values that are computed with parameters" in found["values"]
    assert "asks" not in found  # of the batch itself: that can be answered
    assert "returned after 0 of the 4 blocks" in found["no call"]
    assert "8 samples, which is not divisible into 3 microbatches" in found["microbatches"]
    assert all("HINT" in message for message in found.values())
