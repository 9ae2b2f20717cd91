# SPDX-License-Identifier: Apache-2.0
"""The memory of a loader's worker does not grow with the text."""

import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("kind", ["mapped", "streamed"])
@pytest.mark.parametrize("gigabytes", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_worker_takes_200_mb_whatever_the_size(kind, gigabytes):
    program = ROOT / "benchmarks" / "data_memory.py"
    command = [sys.executable, program, "--kind", kind, "--gigabytes", gigabytes, "--batches", 150 * gigabytes]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    rows, own = map(int, re.search(rf"{kind}: (\d+) rows, (\d+) MB above", done.stdout).groups())
    assert rows == gigabytes * 2**22
    assert 0 < own <= 200
