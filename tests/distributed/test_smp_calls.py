# SPDX-License-Identifier: Apache-2.0
"""Calls of ``smdistributed.modelparallel`` train as in one process, or fail with one error on all ranks."""

from pathlib import Path

import pytest

from tests.conftest import fork_ranks, read_ranks

WORKER = Path(__file__).with_name("smp_calls_worker.py")


@pytest.fixture(scope="module", params=[1, 2], ids=["whole", "two"])
def runs(request, tmp_path_factory):
    """Partitions, and the results of two processes."""
    folder = tmp_path_factory.mktemp("calls")
    fork_ranks(WORKER, folder, request.param, processes=2)
    return request.param, read_ranks(folder)


@pytest.mark.parametrize("call", ["usual", "outputs", "recomputed", "scaler", "gathered", "continued", "clipped"])
def test_weights_are_those_of_one_process(runs, call):
    for found in runs[1]:
        assert found[call] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    "call", ["undecorated", "undecorated_of_torch", "accumulated", "evaluated", "of_torch", "clipping"]
)
def test_a_partitioned_model_is_called_in_steps_only(runs, call):
    """Where each process has the full model, steps are optional, and replicas still average their gradients."""
    partitions, ranks = runs
    for found in ranks:
        if partitions == 1:
            assert found[call] == pytest.approx(0, abs=1e-5)
        elif call == "of_torch":
            assert "loss.backward() was called in a step" in found[call]
        elif call == "clipping":
            assert "clip_grad_norm_ was called in a step. HINT: call it after the step" in found[call]
        else:
            assert "outside of a step, but it is partitioned" in found[call]


def test_results_keep_their_containers(runs):
    partitions, ranks = runs
    for found in ranks:
        assert found["kinds"] == ["Answer", [8 if partitions == 1 else 16, 4], {"rows": [3, 3]}, "StepOutput"]


def test_what_contains_all_partitions_cannot_be_recomputed(runs):
    partitions, ranks = runs
    for found in ranks:
        if partitions == 1:
            assert found["recomputed_whole"] == pytest.approx(0, abs=1e-5)
        else:
            assert "was called for the model, which contains the partitions of body" in found["recomputed_whole"]


def test_replicas_may_have_different_numbers_of_batches(runs):
    """As in torch's wrapper: one that has finished counts as zero, and gets the weights of the last one."""
    partitions, ranks = runs
    for found in ranks:
        assert found["joined"] == pytest.approx([0] * len(found["joined"]), abs=1e-6)
        if partitions == 1:
            assert "1 of 2 replicas have no more batches" in found["thrown"]


def test_wrong_groups_and_ranks_are_refused(runs):
    for found in runs[1]:
        assert all("call smp.init() first" in said for said in found["before"].values())
        assert "'WORLD' was given as a group" in found["groups"]["name"]
        assert "was given as a group" in found["groups"]["ranks"]
        assert "rank 99 of WORLD_RANK was given on rank" in found["groups"]["too_high"]
        assert "rank -1 of WORLD_RANK was given on rank" in found["groups"]["negative"]
