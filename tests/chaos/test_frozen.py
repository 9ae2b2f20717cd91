# SPDX-License-Identifier: Apache-2.0
"""A rank that freezes is noticed and named."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("frozen_worker.py")
PATIENCE = 3


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.parametrize("frozen", ["0", pytest.param("", marks=pytest.mark.slow)])
def test_the_others_end_and_say_which_rank_it_was(tmp_path, frozen):
    log = tmp_path / "log"
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    environment = {**os.environ, **common, "OMP_NUM_THREADS": "1", "FREEZE": frozen}
    begin = time.monotonic()
    with log.open("w") as output:
        ranks = [
            subprocess.Popen(
                [sys.executable, WORKER, str(PATIENCE)],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for rank in (0, 1)
        ]
    try:
        other = 1 if frozen == "0" else 0
        code = ranks[other].wait(60)
        text = log.read_text()
        if frozen:
            assert code == 1, text
            assert f"rank {frozen} has sent no heartbeat for {PATIENCE} s, so rank {other} exits. HINT" in text
            assert time.monotonic() - begin < 40
        else:
            assert (code, ranks[1].wait(30)) == (0, 0), text
            assert "rank 0 has made 40 steps" in text
    finally:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)
            rank.wait()
