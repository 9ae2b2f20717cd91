# SPDX-License-Identifier: Apache-2.0
"""Runs of a worker with a custom loop: interrupted ones, and plain ones to compare them with."""

import json
import os
from pathlib import Path

from tests.conftest import ROOT, Runs, is_contract_variable
from tests.forked import run_forked


def start(worker: Path, folder: Path, ranks: int, whose: str, stop: object = None) -> int | None:
    """Run it, and return its exit code."""
    environment = {name: value for name, value in os.environ.items() if not is_contract_variable(name)}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [str(worker), str(folder), str(ranks), whose, json.dumps(stop)]
    return run_forked(command, ranks if ranks > 1 else 0, environment, folder / "log", 100)


def plain_runs(worker: Path, make_folder) -> Runs:
    """Folders of runs without a loop of ours, by number of ranks."""

    def make(ranks: int) -> Path:
        folder = make_folder("plain")
        assert start(worker, folder, ranks, "plain") == 0, (folder / "log").read_text()
        return folder

    return Runs(make)
