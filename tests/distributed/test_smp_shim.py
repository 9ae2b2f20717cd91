# SPDX-License-Identifier: Apache-2.0
"""Scripts written for AWS's ``smdistributed.modelparallel`` train on the shim as they would in one process."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import fork_ranks, read_ranks

WORKER = Path(__file__).with_name("smp_scripts.py")
LAYOUTS = {"two": (2, 2), "replicas": (4, 2), "whole": (2, 1)}
"""Name -> processes, partitions."""


@pytest.fixture(scope="module", params=["digits", "language"])
def runs(request, tmp_path_factory):
    script = request.param
    folder = tmp_path_factory.mktemp("one")
    fork_ranks(WORKER, folder, script, processes=0)
    found = {"one": json.loads((folder / "rank-0.json").read_text())}
    for name, (processes, partitions) in LAYOUTS.items():
        folder = tmp_path_factory.mktemp(name)
        fork_ranks(WORKER, folder, script, processes=processes, PARTITIONS=str(partitions))
        found[name] = read_ranks(folder)
    return SimpleNamespace(script=script, **found)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scripts_train_as_in_one_process(runs, layout):
    for found in getattr(runs, layout):
        assert found["losses"] == pytest.approx(runs.one["losses"], abs=1e-5)
        if runs.script == "digits":
            assert found["weights"] == pytest.approx(runs.one["weights"], abs=1e-4)
            assert found["shapes"] == [[8 // (2 if layout != "two" else 1), 10], 4, [4]]
            assert found["tested"][0] == "list"


def test_partial_and_full_files_are_those_of_aws(runs):
    found = runs.two[0]
    if runs.script == "digits":
        assert found["files"] == ["full.pt", "partial.pt_0", "partial.pt_1"]
        assert [rank["ranks"] for rank in runs.replicas] == [
            [0, 0, 0, 0, 0, 0],
            [1, 0, 0, 1, 1, 0],
            [2, 1, 1, 0, 0, 0],
            [3, 1, 1, 1, 1, 0],
        ]
        assert runs.two[0]["own"] + runs.two[1]["own"] == runs.whole[0]["own"]
    else:
        parts = [f"half_partial/{kind}_{stage}_0.pt" for kind in ("model", "optimizer") for stage in (0, 1)]
        assert set(parts) < set(found["files"])
        assert {"newest", "whole.pt", "user_content_whole.pt", "half_partial/user_content.pt"} < set(found["files"])


@pytest.mark.parametrize("layout", ["two", "replicas"])
def test_checkpoints_hooks_and_messages(runs, layout):
    if runs.script == "digits":
        return  # only the other script does this
    for rank, found in enumerate(getattr(runs, layout)):
        assert found["again"] == pytest.approx(found["losses"][4:], abs=1e-5)
        assert found["first"] == pytest.approx(found["losses"][4], abs=1e-5)
        assert found["events"] == ["partitioned", "stepped"]
        assert found["heard"] == ({"from": rank - 1} if rank % 2 else None)
        assert found["version"] == "1.15.0"
        assert found["content"] == {"step": 3}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_nets_in_a_row_are_cut(runs, layout):
    """Without a list of blocks: anywhere in ``digits``, and in ``language`` where ``smp.partition`` says."""
    ranks = [rank["grouped"] for rank in getattr(runs, layout)]
    for found in ranks:
        assert found["losses"] == pytest.approx(runs.one["grouped"]["losses"], abs=1e-5)
    if layout != "whole":
        first, last = ranks[0]["own"], ranks[-1]["own"]
        assert not set(first) & set(last)
        assert len(first) + len(last) == 8
        if runs.script == "language":
            assert {name.split(".")[0] for name in first} == {"net1"}


SHARED = {
    "two": {"processes": 2, "PARTITIONS": "1"},
    "prescaled": {"processes": 2, "PARTITIONS": "1", "PRESCALED": "1"},
    "stages": {"processes": 4, "PARTITIONS": "2"},
    "copies": {"processes": 4, "PARTITIONS": "1"},
}
"""Layouts with tensor_parallel_degree 2."""


@pytest.mark.parametrize(
    "layout", [name if name == "two" else pytest.param(name, marks=pytest.mark.slow) for name in SHARED]
)
def test_matrices_are_shared(layout, tmp_path):
    """Losses, weights, each rank's rows; going on from parts and from whole states, before and after the first step."""
    for folder in ("one", "many"):
        (tmp_path / folder).mkdir()
    fork_ranks(WORKER, tmp_path / "one", "shared", processes=0)
    fork_ranks(WORKER, tmp_path / "many", "shared", **SHARED[layout])
    expected = read_ranks(tmp_path / "one")[0]
    ranks = read_ranks(tmp_path / "many")
    assert sum(found["distributed"] for found in ranks) == 80 * len(ranks) // 2 // int(SHARED[layout]["PARTITIONS"])
    for found in ranks:
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
        assert found["weights"] == pytest.approx(expected["weights"], abs=1e-4)
        for again in found["again"].values():
            assert again == pytest.approx(expected["losses"][4:], abs=1e-5)
        for row, logits in zip(expected["logits"][slice(*found["rows"])], found["logits"], strict=True):
            assert logits == pytest.approx(row, abs=1e-5)
        assert found["distributed"] == 40 or layout == "stages"
        assert "enables tensor parallelism for 0 of the 24 matrices" in found["refused"]
        assert "Adafactor was chosen with tensor_parallel_degree" in found["whole matrices"]
        stages = (0, 1) if layout == "stages" else (0,)
        assert found["files"] == [
            f"{kind}_{stage}_{rank}.pt" for kind in ("model", "optimizer") for stage in stages for rank in (0, 1)
        ]
