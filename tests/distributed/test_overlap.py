# SPDX-License-Identifier: Apache-2.0
"""Gradients of replicas that are averaged during the backward passes equal those that are averaged after them.

Two stages; two replicas, whose sums of two numbers have no order, so all bits are equal; and three, up to rounding.
"""

from pathlib import Path

import pytest

from tests.conftest import Runs, fork_ranks, read_ranks

WORKER = Path(__file__).with_name("overlap_worker.py")
PROCESSES = (4, pytest.param(6, marks=pytest.mark.slow))
TOLERANCE = {4: 0.0, 6: 1e-6}


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    def make(processes):
        folder = tmp_path_factory.mktemp(f"overlap-{processes}")
        fork_ranks(WORKER, folder, processes=processes, timeout=400)
        return read_ranks(folder)

    return Runs(make)


def assert_equal(found, processes):
    assert found["worst"] <= TOLERANCE[processes]
    assert found["missing"] == []
    assert found["size"] > 1000


@pytest.mark.parametrize("processes", PROCESSES)
def test_gradients_equal_those_that_are_reduced_after_the_backward_passes(launched, processes):
    """Tied and untied models, every schedule, and batches whose gradients are accumulated."""
    for rank in launched[processes]:
        assert len(rank["equality"]) == 6
        for found in rank["equality"].values():
            assert_equal(found["first"], processes)
            assert_equal(found["accumulated"], processes)
            assert found["asynchronous"] > 0


@pytest.mark.parametrize("processes", PROCESSES)
def test_parameters_may_be_unused_on_some_replicas_and_in_some_steps(launched, processes):
    last = {"one replica": "one_replica.weight", "later": "later.weight", "all": "never.weight"}
    for number, rank in enumerate(launched[processes]):
        for name, found in rank["optional"].items():
            assert_equal(found, processes)
            if name in last and number % 2:  # the last stage has them
                assert last[name] in found["with"]
        assert not [name for name in rank["optional"]["none again"]["with"] if name.startswith(("never", "later"))]


@pytest.mark.parametrize("processes", PROCESSES)
def test_a_failing_step_leaves_nothing_for_the_next(launched, processes):
    for rank in launched[processes]:
        assert rank["failure"]["raised"] in ("PipelineError", "ZeroDivisionError")
        assert_equal(rank["failure"], processes)


@pytest.mark.parametrize("processes", PROCESSES)
def test_training_with_accumulation_clipping_and_precisions_is_the_same(launched, processes):
    """The clip factor of replicas, and skipped float16 steps, depend on every bit of all gradients."""
    for rank in launched[processes]:
        for during, after in rank["trainer"]:
            if processes == 4:
                assert during == after
            else:
                assert during["losses"] == pytest.approx(after["losses"], abs=1e-2)
