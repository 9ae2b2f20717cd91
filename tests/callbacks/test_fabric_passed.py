# SPDX-License-Identifier: Apache-2.0
"""A resumed loop does not enter an epoch's earlier loops over batches again, nor one that was left by ``break``."""

import json
from pathlib import Path

import pytest

from lightning_sagemaker.callbacks.fabric_passed import PassedLoops
from tests.callbacks.fabric_runs import plain_runs, start

WORKER = Path(__file__).with_name("passed_worker.py")


def lines_of(folder, rank):
    found = [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()]
    return {str(line["place"]): line for line in found}, len(found)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return plain_runs(WORKER, tmp_path_factory.mktemp)


@pytest.mark.parametrize(
    ("ranks", "stop"),
    [
        (1, [1, "first", 1]),
        (1, [1, "second", 0]),
        (1, [1, "second", 2]),
        (1, [0, "evaluation", 0]),
        (2, [1, "first", 4]),
        (2, [1, "second", 1]),
        (2, [1, "evaluation", 0]),
        (2, [0, "end"]),
    ],
)
def test_goes_on_as_if_it_had_been_left_alone(ranks, stop, reference, tmp_path):
    assert start(WORKER, tmp_path, ranks, "ours", stop) != 0
    before = [lines_of(tmp_path, rank)[1] for rank in range(ranks)]
    assert start(WORKER, tmp_path, ranks, "ours") == 0, (tmp_path / "log").read_text()
    for rank in range(ranks):
        wanted, count = lines_of(reference[ranks], rank)
        found, written = lines_of(tmp_path, rank)
        assert found == wanted
        assert before[rank] < count
        assert written <= count + 1  # the first batch of an evaluation, which is repeated


def test_a_loop_that_an_exception_has_ended_is_to_go_on():
    passed = PassedLoops()
    passed.end(0, 3, None, is_left=True)
    assert passed.of_checkpoint() == ([{"calls": 0, "batch": 3, "position": None}], True)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert passed.of_checkpoint() == ([], False)
