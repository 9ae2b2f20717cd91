# SPDX-License-Identifier: Apache-2.0
"""What scripts keep in attributes, and loaders of their own for some epochs: equal to stock DDP after ranks were lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "own_state.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")


def run(folder: Path, program: list[str], *arguments: str) -> list[Any]:
    folder.mkdir()
    command = [sys.executable, "-m", *program, str(SCRIPT), str(folder), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return run(tmp_path_factory.mktemp("stock") / "job", torchrun, "ddp")


@pytest.mark.parametrize(
    "losses",
    [
        ("fit:0:1", "validation:16:0", "save:20:1", "fit:30:0"),
        pytest.param(("validation:8:1", "validation:24:1"), marks=pytest.mark.slow),
        ("sanity:0:1",),
        ("start:0:0", "sanity:0:0"),
        pytest.param(("fit:8:0", "fit:9:1", "fit:25:1"), marks=pytest.mark.slow),
    ],
)
def test_attributes_follow_the_steps(stock, tmp_path, losses):
    supervise = ["lightning_sagemaker.cli", "supervise", "--processes", "2", "--rejoin-timeout", "60"]
    found = run(tmp_path / "job", supervise, "sagemaker", *losses)
    assert {path.name for path in (tmp_path / "job").glob("*:*")} == set(losses)
    for own, expected in zip(found, stock, strict=True):
        assert own["weights"] == pytest.approx(expected["weights"], abs=1e-6)
        assert len(own["rows"]) == len(expected["rows"])
        for row, right in zip(own["rows"], expected["rows"], strict=True):
            assert row == pytest.approx(right, abs=1e-6)
