# SPDX-License-Identifier: Apache-2.0
"""What a stage sends to the others arrives as it was, and is pickled once, not at each step."""

from pathlib import Path

import pytest

from tests.conftest import fork_ranks, read_ranks

WORKER = Path(__file__).with_name("structure_worker.py")
PROCESSES, STEPS = 3, 10


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("structure")
    fork_ranks(WORKER, folder, processes=PROCESSES)
    return read_ranks(folder)


def test_values_arrive_as_they_were(ranks):
    for rank in ranks:
        assert len(rank["equal"]) == STEPS + 3 + 40 + 2
        assert all(rank["equal"])


def test_a_structure_is_pickled_once(ranks):
    """Objects of torch are pickled at each step."""
    for rank in ranks:
        assert rank["pickled"][:STEPS] == [1] * STEPS
        assert rank["pickled"][STEPS : STEPS + 3] == [1, 2, 2]
    assert ranks[-1]["objects"] == STEPS


def test_few_bytes_are_sent_beside_the_tensors(ranks):
    source = ranks[-1]
    assert source["bytes"] < 1.01 * STEPS * (PROCESSES - 1) * source["payload"]
    assert not ranks[0]["bytes"]


def test_what_cannot_be_pickled_is_one_error_on_all_ranks(ranks):
    for rank in ranks:
        assert "cannot be sent to the other stages" in rank["error"]
        assert "HINT" in rank["error"]
