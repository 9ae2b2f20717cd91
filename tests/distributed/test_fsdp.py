# SPDX-License-Identifier: Apache-2.0
"""``"smddp_fsdp"`` against Lightning's ModelParallelStrategy with ``fully_shard`` and a loop of plain torch, bit by bit."""

from pathlib import Path

import pytest

from tests.conftest import Runs, fork_ranks, read_ranks

WORKER = Path(__file__).with_name("fsdp_worker.py")
SCRATCH = 65536
"""Bytes among all processes: between the sizes of the blocks and of the rest of the models, so that both engines gather."""
BRIEF = ("plain", "bf16-mixed", "offload", "accumulated", "own units")
CASES = (
    *BRIEF,
    "tied",
    "encoder and decoder",
    "no blocks",
    "bf16-true",
    "recompute",
    "kept",
    "hybrid",
    "named units",
)
LONG = [2, 4]
"""Numbers of processes; 0 stands for the brief run of two."""


def run(folder, kind, processes):
    names = BRIEF if processes == 0 else CASES
    variables = {"SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES": str(SCRATCH // (processes or 2))}
    fork_ranks(WORKER, folder, kind, ",".join(names), processes=processes or 2, **variables)
    return read_ranks(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(lambda key: run(tmp_path_factory.mktemp(f"fsdp-{key[0]}-{key[1]}"), *key))


def each(names):
    return [(0, name) for name in names[0]] + [
        pytest.param(processes, name, marks=pytest.mark.slow) for processes in LONG for name in names[1]
    ]


EVERYWHERE = [0, *(pytest.param(processes, marks=pytest.mark.slow) for processes in LONG)]


@pytest.mark.parametrize(("processes", "case"), each(((*BRIEF, "loop"), (*CASES, "loop"))))
def test_training_equals_stock_to_the_last_digit(runs, processes, case):
    """The losses of each process and the numbers of its shards, after steps that communicate all that FSDP does."""
    for own, stock in zip(runs["own", processes], runs["stock", processes], strict=True):
        assert own[case] == stock[case]


@pytest.mark.parametrize("processes", EVERYWHERE)
def test_all_that_smddp_takes_goes_there(runs, processes):
    for rank in runs["own", processes]:
        found = rank["traffic"]
        assert rank["backend"] == "smddp_gathering"
        assert 0 < found["eligible"] < found["asked"]
        assert (found["taken"], found["taken_bytes"]) == (found["eligible"], found["eligible_bytes"])
        assert found["shim"] == found["total"]


def test_rank_zero_says_which_engine_and_how_much(runs):
    first, second = (rank["lines"] for rank in runs["own", 0])
    said = [line for line in first if line.startswith("SMDDPFSDPStrategy: ")]
    assert "backend 'smddp'. SMDDP started by torchrun takes AllGather" in said[0]
    assert "SMDDP gathers 8" in said[1]
    assert f"SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES={SCRATCH // 2}" in said[1]
    assert sum("gathers" in line for line in first) == len(BRIEF) + 2  # once for each strategy: traffic and Fabric's
    assert not any("gathers" in line for line in second)


def test_bad_input_is_one_error_on_every_rank(runs):
    for found in (rank["refusals"] for rank in runs["own", 0]):
        assert "contains no such module" in found["units"]
        assert "precision='64-true'" in found["precision"]
        assert "partitions=2" in found["partitions"]
        assert "shard degree 3" in found["degree"]
        assert "did you mean cpu_offload?" in found["keyword"]
        assert all("HINT" in message for message in found.values())
