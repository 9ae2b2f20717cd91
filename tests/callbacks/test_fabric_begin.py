# SPDX-License-Identifier: Apache-2.0
"""A resumed epoch begins with what it began with: random numbers, values and schedulers, from which loaders may be made."""

from pathlib import Path

import pytest

from tests.callbacks.fabric_runs import plain_runs, start
from tests.callbacks.test_fabric_passed import lines_of

WORKER = Path(__file__).with_name("begin_worker.py")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return plain_runs(WORKER, tmp_path_factory.mktemp)


@pytest.mark.parametrize(
    ("ranks", "stops"),
    [
        (1, [[1, "batch", 1]]),
        (1, [[0, "end"]]),
        (1, [[1, "batch", 2], [1, "before", 0], [1, "begin"]]),
        (1, [[1, "end"], [2, "batch", 0]]),
        (2, [[1, "batch", 1], [1, "before", 0]]),
    ],
)
def test_goes_on_as_if_it_had_been_left_alone(ranks, stops, reference, tmp_path):
    for stop in stops:
        assert start(WORKER, tmp_path, ranks, "ours", stop) != 0, (tmp_path / "log").read_text()
    assert start(WORKER, tmp_path, ranks, "ours") == 0, (tmp_path / "log").read_text()
    for rank in range(ranks):
        found, wanted = lines_of(tmp_path, rank)[0], lines_of(reference[ranks], rank)[0]
        for line in (*found.values(), *wanted.values()):
            line.pop("step", None)
        assert found == wanted


def test_a_loop_that_was_left_and_is_held_is_over_with_its_epoch(reference, tmp_path):
    """As ``bar = tqdm(loop.batches(loader))`` after ``break``; a checkpoint is then saved at the epoch's end."""
    assert start(WORKER, tmp_path, 1, "ours") == 0, (tmp_path / "log").read_text()
    assert lines_of(tmp_path, 0)[0]["[2, 'end']"]["step"] == 11  # the last loop is still open
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["auto-step=8.ckpt"]
