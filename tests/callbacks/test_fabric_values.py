# SPDX-License-Identifier: Apache-2.0
"""What ``state`` has besides modules and numbers goes on as if the loop had been left alone."""

import json
import os
from pathlib import Path

import pytest

from tests.callbacks.fabric_worker import EPOCHS
from tests.conftest import ROOT, Runs, is_contract_variable
from tests.forked import run_forked

WORKER = Path(__file__).with_name("fabric_worker.py")


def start(folder, ranks, whose, stop=None):
    environment = {name: value for name, value in os.environ.items() if not is_contract_variable(name)}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [str(WORKER), str(folder), str(ranks), whose, json.dumps(stop)]
    return run_forked(command, ranks if ranks > 1 else 0, environment, folder / "log", 100)


def lines_of(folder, rank):
    return [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    def make(ranks):
        folder = tmp_path_factory.mktemp("plain")
        assert start(folder, ranks, "plain") == 0, (folder / "log").read_text()
        return folder

    return Runs(make)


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
    assert start(tmp_path, ranks, "ours", stop) != 0
    assert len(lines_of(tmp_path, 0)) < EPOCHS * 7
    assert start(tmp_path, ranks, "ours") == 0, (tmp_path / "log").read_text()
    for rank in range(ranks):
        wanted = lines_of(reference[ranks], rank)
        assert wanted[-1]["frozen"]
        assert lines_of(tmp_path, rank) == wanted
