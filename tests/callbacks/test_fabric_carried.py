# SPDX-License-Identifier: Apache-2.0
"""Loaders of which a loop's body takes batches itself go on where they were."""

from pathlib import Path

import pytest

from tests.callbacks.fabric_runs import plain_runs, start
from tests.callbacks.test_fabric_passed import lines_of

WORKER = Path(__file__).with_name("carried_worker.py")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return plain_runs(WORKER, tmp_path_factory.mktemp)


@pytest.mark.parametrize(
    ("ranks", "stops"), [(1, [[0, 0]]), (1, [[0, 2], [1, 3]]), (1, [[1, 0]]), (1, [[0, 5]]), (2, [[0, 3], [2, 1]])]
)
def test_goes_on_as_if_it_had_been_left_alone(ranks, stops, reference, tmp_path):
    for stop in stops:
        assert start(WORKER, tmp_path, ranks, "ours", stop) != 0, (tmp_path / "log").read_text()
    assert start(WORKER, tmp_path, ranks, "ours") == 0, (tmp_path / "log").read_text()
    for rank in range(ranks):
        found, written = lines_of(tmp_path, rank)
        assert found == lines_of(reference[ranks], rank)[0]
        assert written == len(found)
