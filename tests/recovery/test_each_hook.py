# SPDX-License-Identifier: Apache-2.0
"""A rank dies while the other waits for it in a hook, for each hook: stock DDP's weights and logged values, no restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.recovery.each_hook import PLACES
from tests.recovery.logged import logged

SCRIPT = Path(__file__).parent / "each_hook.py"


def run(folder: Path, program: list[str], *arguments: str) -> tuple[Any, dict[tuple[str, str], float], str]:
    """Weights, logged values by name and step, and what was printed."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", *program, str(SCRIPT), str(folder), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return json.loads((folder / "weights.json").read_text()), logged(folder), said


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return run(tmp_path_factory.mktemp("stock"), torchrun, "ddp", "none", "-")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
@pytest.mark.parametrize(("place", "rank"), [(place, str(number % 2)) for number, place in enumerate(PLACES)])
def test_a_rank_that_others_wait_for_in_a_hook(tmp_path, stock, place, rank):
    weights, values, said = run(
        tmp_path, ["lightning_sagemaker.cli", "supervise", "--processes", "2"], "smddp", place, rank
    )
    assert said.count("starting a replacement") + said.count("is not replaced") == 1  # after the fit it is not
    assert weights == stock[0]
    common = stock[1].keys() & values.keys()
    assert {key: values[key] for key in common} == pytest.approx({key: stock[1][key] for key in common}, abs=1e-6)
    # The row of the step in which rank zero dies.
    assert len({step for _, step in stock[1].keys() - common}) <= int(rank == "0")
