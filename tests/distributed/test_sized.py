# SPDX-License-Identifier: Apache-2.0
"""Modules written for Lightning's ModelParallelStrategy, which parallelize themselves: equal with ours to the last digit."""

from pathlib import Path

import pytest

from tests.conftest import Runs, fork_ranks, read_ranks
from tests.skips import needs_shards

pytestmark = needs_shards
WORKER = Path(__file__).with_name("sized_worker.py")
PROCESSES = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    def run(key):
        folder = tmp_path_factory.mktemp(f"sized-{key[0]}-{key[1]}")
        fork_ranks(WORKER, folder, key[0], processes=key[1])
        return read_ranks(folder)

    return Runs(run)


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("case", ["Trainer, matrices", "Trainer, shards", "Fabric, matrices", "Fabric, shards"])
def test_sizes_and_the_module_s_own_parallelism_are_lightnings(runs, processes, case):
    for own, stock in zip(runs["own", processes], runs["stock", processes], strict=True):
        (expected,) = stock[case]
        assert len(expected) > 100
        assert all(found == expected for found in own[case])


@pytest.mark.parametrize("processes", PROCESSES)
def test_fabric_saves_into_a_new_folder_or_fails_on_every_rank(runs, processes):
    for rank in runs["own", processes]:
        found = rank["saved"]
        assert found["is right"]
        assert found["files"] == ["a.ckpt"]
        assert "rank 0: " in found["failed"]
        assert found["without a model"].startswith("ValueError: Could not find a distributed model")
        assert "HINT: save to job.checkpoint_dir" in found["address"]


@pytest.mark.parametrize("processes", PROCESSES)
def test_a_full_state_dict_is_loaded_into_a_sharded_module(runs, processes):
    for rank in runs["own", processes]:
        for found in rank["reloaded"]:
            assert (found["is right"], found["kept"]) == (True, True)
            assert "size mismatch" in found["wrong"]


@pytest.mark.parametrize("processes", PROCESSES)
def test_sizes_that_contradict_are_one_error(runs, processes):
    for found in (rank["refusals"] for rank in runs["own", processes]):
        assert f"data_parallel_size={processes + 1} was set, but {processes} processes" in found["replicas"]
        assert "tensor_parallel_size=2 was set with a tensor parallel degree of 4" in found["tensor"]
        assert "tensor_parallel_size='2' was set" in found["number"]
        assert len(found) == 3 or "also call fully_shard" in found["not sharded"]
        assert all("HINT" in message for message in found.values())


def test_a_model_that_is_gathered_at_once_is_said_to_be(runs):
    first, second = (rank["lines"] for rank in runs["own", 2])
    assert (
        sum("Model has no repeated blocks, so its parameters are gathered all at once" in line for line in first) == 1
    )
    assert not any("no repeated blocks" in line for line in second)
