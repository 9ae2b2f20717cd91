# SPDX-License-Identifier: Apache-2.0
"""What ``state`` has besides modules and numbers goes on as if the loop had been left alone."""

import json
from pathlib import Path

import pytest

from tests.callbacks.fabric_runs import plain_runs, start
from tests.callbacks.fabric_worker import EPOCHS

WORKER = Path(__file__).with_name("fabric_worker.py")


def lines_of(folder, rank):
    return [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return plain_runs(WORKER, tmp_path_factory.mktemp)


@pytest.mark.parametrize(
    ("ranks", "stop"),
    [
        (1, ["batch", 1, 2]),
        (1, ["evaluation", 0]),
        (1, ["epoch", 0]),
        (2, ["batch", 2, 1]),
        (2, ["evaluation", 1]),
    ],
)
def test_goes_on_as_if_it_had_been_left_alone(ranks, stop, reference, tmp_path):
    assert start(WORKER, tmp_path, ranks, "ours", stop) != 0
    assert len(lines_of(tmp_path, 0)) < EPOCHS * 7
    assert start(WORKER, tmp_path, ranks, "ours") == 0, (tmp_path / "log").read_text()
    for rank in range(ranks):
        wanted = lines_of(reference[ranks], rank)
        assert wanted[-1]["frozen"]
        assert lines_of(tmp_path, rank) == wanted
