# SPDX-License-Identifier: Apache-2.0
"""Ranks that would train different models after a replacement are restarted together instead."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightning_sagemaker.recovery.refused import CannotRecover
from lightning_sagemaker.recovery.weights_check import WeightsCheck


def supervised(folder):
    """What was printed, and the steps and weights of each rank at the end."""
    folder.mkdir()
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--processes", "2"]
    done = subprocess.run(
        [*command, str(Path(__file__).parent / "diverging.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
def test_ranks_with_different_weights_are_restarted(tmp_path):
    said, ends = supervised(tmp_path / "killed")
    assert "2 of 2 ranks continue" in said
    assert said.count("the ranks have trained different weights") == 1
    assert ends[0] == ends[1]
    assert ends[0][0] == 12


def test_a_bit_tells_weights_apart():
    module = torch.nn.ModuleDict(
        {
            f"of_{str(kind)[6:]}": torch.nn.Linear(3, 2).to(kind)
            for kind in (torch.float32, torch.bfloat16, torch.float64)
        }
    )
    module["complex"] = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))])
    check = WeightsCheck(True, None, True)
    check.begin()
    before = check.sum(module)
    assert check.sum(module) == before
    with torch.no_grad():
        module["of_bfloat16"].weight[0, 0] *= 1.01
    assert check.sum(module) != before
    for _ in range(3):
        check.sum(module)
    assert check.sum(module) is None  # no longer compared


def test_shards_are_not_compared():
    check = WeightsCheck(False, None, True)
    check.begin()
    assert check.sum(torch.nn.Linear(1, 1)) is None


def test_who_has_asked_for_recovery_gets_an_error():
    with pytest.raises(CannotRecover, match="different weights: the script has something that decides its updates"):
        WeightsCheck(True, None, True).checked({"commit": True, "differ": True})
    assert WeightsCheck(True, None, True).checked({"commit": True}) == {"commit": True}
