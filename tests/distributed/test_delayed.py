# SPDX-License-Identifier: Apache-2.0
"""Parameters that get values only on the stages that need them: the same training, in less memory."""

import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import Runs, fork_ranks, read_ranks, run_bounded, torchrun
from tests.distributed.limited import remove_group

WORKER = Path(__file__).with_name("delayed_worker.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("delayed")
    fork_ranks(WORKER, folder, "refusals", "equality", "again", "checkpoints", "on_meta", processes=2)
    return read_ranks(folder)


@pytest.mark.parametrize("name", ["bert-mlm", "gpt2", "plain-tied"])
def test_training_equals_that_of_a_model_built_as_always(ranks, name):
    """To the last bit, from the same seed; the two stages have the whole model once, and what is tied twice."""
    for found in (rank["equality"][name] for rank in ranks):
        assert found["delayed"] == found["as always"]
        assert found["numbers"] < 0.8 * found["whole"]
    assert sum(rank["equality"][name]["numbers"] for rank in ranks) >= ranks[0]["equality"][name]["whole"]


def test_the_module_stays_partitioned_and_is_used_again(ranks):
    first, second = (rank["again"] for rank in ranks)
    assert first["validated"] == second["validated"] == pytest.approx(first["expected"], abs=1e-5)
    assert second["names"] == 0


def test_checkpoints_are_read_where_they_are_needed(ranks):
    """Whole ones of either kind of run, with the optimizer's moments, and ones in parts."""
    for found in (rank["checkpoints"] for rank in ranks):
        fits = {name: losses for name, losses in found.items() if name not in ("expected", "before")}
        assert {"as-always.ckpt", "delayed.ckpt", "parts"} <= fits.keys()
        assert all(losses == found["expected"] for losses in fits.values()), fits
        assert found["before"]


def test_a_model_that_the_script_puts_on_the_meta_device_trains(ranks):
    assert "plain" in ranks[0]["on_meta"]
    for name in ranks[0]["on_meta"]:
        first, second = (rank["on_meta"][name] for rank in ranks)
        assert first["losses"] == second["losses"]
        assert all(0 < loss < 10 for loss in first["losses"])
        assert all(first["buffers"].values()), first["buffers"]


def test_what_nothing_gives_values_to_is_one_error_on_every_rank(ranks):
    for found in (rank["refusals"] for rank in ranks):
        assert "extra (Unknown)" in found["unknown"]
        assert "has no reset_parameters()" in found["unknown"]
        assert found["before groups"]
        assert (
            "extra.steps was built on the meta device, and the initializer of Forgets does not set it"
            in found["buffer"]
        )
        assert all("HINT" in found[name] for name in ("unknown", "buffer"))
        assert found["good"] is None


def test_scripts_of_aws_library_delay_parameters(tmp_path):
    fork_ranks(WORKER, tmp_path, "shim", processes=2)
    for found in (rank["shim"] for rank in read_ranks(tmp_path)):
        assert found["on meta"]
        assert found["same"]
        assert found["loss"] == pytest.approx(found["expected"], abs=1e-5)
        assert found["share"] < 0.8


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """One process without a limit, then two whose memory is smaller than the model."""

    def make(name):
        folder = tmp_path_factory.mktemp(name)
        if name == "reference":
            fork_ranks(WORKER, folder, name, processes=0)
            return folder
        file = runs["reference"] / "wide.pt"
        torchrun(WORKER, folder, name, processes=2, WIDE_FILE=str(file))  # not forked: its memory is its own
        return folder

    runs = Runs(make)
    return runs


def test_a_model_larger_than_a_process_s_memory_trains(wide):
    """256 MiB of weights where each of two processes may take 210 MiB more than it has: from a seed, and from a file."""
    (expected,) = read_ranks(wide["reference"])
    for found in (rank["limited"] for rank in read_ranks(wide["limited"])):
        remove_group(found["process"])
        assert found["seeded"] == pytest.approx(expected["reference"]["seeded"], rel=1e-5)
        assert found["loaded"] == pytest.approx(expected["reference"]["loaded"], rel=1e-5)
        assert found["seeded"][0] != found["loaded"][0]


@pytest.mark.slow
def test_the_same_model_built_as_always_does_not_fit(tmp_path):
    result = run_bounded([sys.executable, str(WORKER), str(tmp_path), "as_always"])
    process, kind = (tmp_path / "process").read_text().split(" ", 1)
    remove_group(int(process))
    if kind == "RLIMIT_DATA":
        assert "memory" in result.stdout
        assert result.returncode == 1
    else:
        assert result.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_stages_of_shared_matrices_equal_those_of_a_model_built_as_always(tmp_path):
    fork_ranks(WORKER, tmp_path, "tensor", processes=4)
    for found in (rank["tensor"] for rank in read_ranks(tmp_path)):
        assert found["delayed"] == found["as always"]
