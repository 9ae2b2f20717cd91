# SPDX-License-Identifier: Apache-2.0
"""Recovery in the job on several hosts: no host but the first is needed, and without the first nothing hangs."""

import random
import re
import time
from collections import Counter

import pytest

from lightning_sagemaker.simulator import network
from lightning_sagemaker.supervisor import goodput
from tests.chaos import recovery, recovery_hosts
from tests.chaos.recovery import Setting
from tests.chaos.recovery_compare import compare, rows

REASON = network.obstacle()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

SHORT = Setting(2, samples=400, epochs=2)
TWO = Setting(2, samples=3000)
LONG = Setting(3, samples=4500)


def steps(folder):
    return sum(row[0] == "step" for row in rows(folder / "steps.jsonl"))


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_a_remote_rank_that_is_killed_is_replaced(tmp_path):
    with recovery_hosts.hosts(2) as net:
        outcome = recovery.run(SHORT, tmp_path / "job", random.Random(1), 2, ["kill a remote rank"], net, limit=60)
    assert (outcome.code, outcome.problems, len(outcome.gaps)) == (0, [], 2), outcome.output
    noted = {row[1] for row in rows(tmp_path / "job" / "steps.jsonl") if row[0] == "step"}
    assert noted == set(range(1, 51))
    seen = Counter(
        epoch
        for epoch, _ in {
            (row["epoch"], sample)
            for rank in range(2)
            for row in rows(tmp_path / "job" / f"rank-{rank}.jsonl")
            for sample in row["samples"]
        }
    )
    assert seen == {0: 400, 1: 400}
    found = goodput.read(tmp_path / "job")
    assert (found.steps, len(found.losses)) == (50, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(recovery_hosts.KINDS)))
def test_a_job_trains_as_one_that_was_left_alone(tmp_path, tmp_path_factory, kind):
    reference = tmp_path_factory.getbasetemp() / "recovery-reference"
    if not reference.exists():
        assert recovery.run(LONG, reference, None).code == 0
    with recovery_hosts.hosts(3) as net:
        outcome = recovery.run(LONG, tmp_path / "job", random.Random(2), 2, [kind], net, limit=200)
    assert (outcome.code, outcome.problems) == (0, []), outcome.output[-4000:]
    assert compare(reference, tmp_path / "job", LONG, 2) == []
    noticed = recovery_hosts.SILENCE + 1 if re.search("cut|freeze", kind) else 3
    assert max(gap for _, gap in outcome.gaps) < noticed + 1  # one for a busy machine


@pytest.mark.slow
@pytest.mark.parametrize("is_cut", [False, True])
def test_without_the_first_host_all_end_within_seconds(tmp_path, is_cut):
    patience = 3.0
    with recovery_hosts.hosts(2) as net:
        options = ["--reconnect-timeout", str(patience)]
        job = recovery.start_on(net, TWO, tmp_path, *options)
        try:
            assert wait_for(lambda: steps(tmp_path) > 5, 60), job.output
            if is_cut:
                job.link(0, "down")
            job.kill_host(0)
            begin = time.monotonic()
            assert job.supervisors[1].wait(60) == 1, job.output
            limit = 3 + (recovery_hosts.SILENCE + patience + 5 if is_cut else 0)
            assert time.monotonic() - begin < limit
        finally:
            job.kill()
    text = (tmp_path / "output-1.txt").read_text()
    assert "rank 1 has lost its coordinator and exits" in text
    assert "the coordinator is gone; not replacing rank 1. HINT" in text
