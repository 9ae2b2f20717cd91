# SPDX-License-Identifier: Apache-2.0
"""The debug log of a recovery: it names who waits for whom, and is written only where it is asked for."""

import logging
import os
import subprocess
import sys
import textwrap
import time

import pytest

from lightning_sagemaker.recovery import protocol_log
from tests.supervisor.played_ranks import Ranks

SCRIPT = """
    import os, signal, time
    from pathlib import Path
    from lightning_sagemaker.recovery import wire
    from lightning_sagemaker.recovery.coordinator_client import CoordinatorClient

    rank, been_here = int(os.environ["RANK"]), Path("been here")
    client = CoordinatorClient(os.environ[wire.ADDRESS], os.environ[wire.TOKEN], rank, {"host": "h"}, lambda: None)
    client.start()
    if rank == 1 and been_here.exists():
        client.next_quorum(None)
    elif rank == 1:
        been_here.touch()
        client.commit(1, True)
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        client.commit(step := 1, True)
        while not client.changed:
            time.sleep(0.01)
        client.next_quorum([step])
        while not client.commit(step := step + 1, True)["change"]:
            time.sleep(0.01)
        client.next_quorum([step])
    client.finish()
"""


def test_the_log_names_the_rank_that_the_others_wait_for(caplog):
    caplog.set_level(logging.DEBUG, "lightning_sagemaker.recovery")
    job = Ranks(world_size=3)
    try:
        job.start(0, 1, 2)
        job.clients[1].close()
        assert job.notices[0].wait(5)
        waits = job.ask(job.clients[0].next_quorum, [1])  # and rank 2 hangs in its script
        assert job.coordinator_hears_of(0)
        said = "coordinator: ranks [0] wait for ranks [2] to request the next quorum"
        deadline = time.monotonic() + 5
        while said not in caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)  # the coordinator looks again, and has nothing new to say
        assert caplog.messages.count(said) == 1
        assert "rank 0 sends request 2: NextQuorum(at=[1], admits=True)" in caplog.messages
        assert not any(line.startswith("rank 0 receives reply 2") for line in caplog.messages)
        assert not waits.done()
        assert any(line.startswith("coordinator: lost {'rank': 1") for line in caplog.messages)
        job.quorum([1], 2)
        waits.result(5)
        assert any("rank 0 receives reply 2:" in line and "order=[0, 2]" in line for line in caplog.messages)
    finally:
        job.close()


def test_it_is_off_unless_asked_for(caplog):
    assert not protocol_log.log.isEnabledFor(logging.DEBUG)
    job = Ranks(world_size=1)
    job.start(0)
    job.close()
    assert caplog.messages == []


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_variable_has_ranks_and_supervisor_write_it(tmp_path, switch):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--processes", "2", "--no-preload"]
    done = subprocess.run(
        [*command, "script.py"],
        cwd=tmp_path,
        env={**os.environ, protocol_log.SWITCH: switch},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines = (
        "rank 1 sends request 2: Commit(quorum=1, step=1, ok=True)",
        "coordinator: lost {'rank': 1",
        "rank 0 receives notice: QuorumBroken(quorum=1)",
        "rank 1 receives reply 1: order=[1] sources=[] holders=[] kind=join",
        ": Finish()",
    )
    assert [line in done.stderr for line in lines] == [switch == "1"] * len(lines), done.stderr
