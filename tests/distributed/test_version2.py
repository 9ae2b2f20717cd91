# SPDX-License-Identifier: Apache-2.0
"""A script written for ``torch.sagemaker`` trains on the shim as the model does in one process."""

import json
from pathlib import Path

import pytest

from tests.conftest import fork_ranks, read_ranks

WORKER = Path(__file__).with_name("version2_worker.py")
LAYOUTS = {
    2: {"native": {}},
    4: {
        "hybrid": {"hybrid_shard_degree": 2},
        "copies": {"hybrid_shard_degree": 1},
        "tensor": {"tensor_parallel_degree": 2},
    },
}
CASES = [(processes, layout) for processes, layouts in LAYOUTS.items() for layout in layouts]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    fork_ranks("-m", "lightning_sagemaker", WORKER, folder, processes=0)
    found, other = {1: read_ranks(folder)}, {}
    for processes, layouts in LAYOUTS.items():
        folder = tmp_path_factory.mktemp(f"version2-{processes}")
        fork_ranks(
            "-m", "lightning_sagemaker", WORKER, folder, processes=processes, LAYOUTS=json.dumps(layouts), **other
        )
        found[processes] = read_ranks(folder)
        left = next(place for place in folder.iterdir() if place.is_dir() and place.name != "by module")
        other = {"OTHER": str(left)}
    return found


@pytest.mark.parametrize(("processes", "layout"), CASES)
def test_training_and_checkpoints_equal_one_process(runs, processes, layout):
    """Losses; a checkpoint written beside the training, continued by the same layout and by others."""
    expected = runs[1][0]["losses"]
    for found in (rank[layout] for rank in runs[processes]):
        assert found["losses"] == pytest.approx(expected, abs=1e-5)
        assert found["rest"] == pytest.approx(expected[4:], abs=1e-5)
        if processes == 4:
            assert found["rest of other"] == pytest.approx(expected[4:], abs=1e-5)
        by_module = [found["by module"]]
        if processes == 4 and layout == "tensor":
            by_module += [rank["by module"] for rank in runs[processes]]  # of another layout
        for loaded in by_module:
            assert loaded["losses"] == pytest.approx(expected[4:], abs=1e-5)
            assert (loaded["scheduler"], loaded["own"]) == (4, {"total_steps": 4, "resume_from": 7})
        assert found["delayed"] == pytest.approx(runs[1][0]["delayed"], abs=1e-5)
        assert found["drawn"] == 0
        assert found["units"] == 3  # the whole and its two layers, whatever class the script names
        assert found["names"] == runs[2][0]["native"]["names"]


def test_parameters_are_where_the_degrees_say(runs):
    native = sum(rank["native"]["own"] for rank in runs[2])
    four = {layout: [rank[layout]["own"] for rank in runs[4]] for layout in LAYOUTS[4]}
    assert four["copies"] == [native] * 4
    assert sum(four["hybrid"]) == 2 * native
    assert native < sum(four["tensor"]) < 2 * native
    assert [rank["tensor"]["state"] for rank in runs[4]] == [
        [2, 0, [0, 1]],
        [2, 1, [0, 1]],
        [2, 0, [2, 3]],
        [2, 1, [2, 3]],
    ]
    assert runs[4][0]["hybrid"]["copies"] == [[0, 2], [1, 3]]


def test_models_on_the_meta_device_are_filled(runs):
    found = runs[2][0]["native"]["meta"]
    assert found["good"] is None
    assert "not initialized" in found["bad"]
    assert "HINT" in found["bad"]


def test_bad_input_and_old_checkpoints(runs):
    messages = {"context": "context_parallel_degree", "degree": "shard degree 3", "pipeline": "has no pipeline"}
    messages["unsharded"] = "tensor_parallel_degree=2 and a shard degree of 1"
    for rank in runs[4]:
        for name, message in messages.items():
            assert message in rank["refusals"][name]
            assert "HINT" in rank["refusals"][name]
    assert runs[4][0]["left"] == 1
