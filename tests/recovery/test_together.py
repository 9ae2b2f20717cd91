# SPDX-License-Identifier: Apache-2.0
"""Sharded training under ``supervise``: a rank is lost, all are restarted, and continue from what is in memory."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sagemaker.simulator.hosts import free_port
from tests.conftest import PATIENCE, fork_ranks
from tests.distributed.test_memory import EVERY, WORKER, repeated, same_as_undisturbed, steps_of
from tests.skips import needs_shards

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    fork_ranks(WORKER, folder, "[]", EVERY, processes=2, timeout=120)
    return folder


def supervise(folder: Path, options: list[str], script: list[str]) -> subprocess.Popen:
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--silence", "3", *options, *script]
    log = (folder / "output.txt").open("a")
    return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})


def start(folder: Path, deaths: list, *options: str) -> subprocess.Popen:
    return supervise(folder, [*options], [str(WORKER), str(folder), json.dumps(deaths), str(EVERY)])


def test_ranks_are_killed_and_frozen(tmp_path, undisturbed):
    supervisor = start(tmp_path, [[[1], 8], [[0], 14, "stop"], [[0, 1], 22]], "--processes=2")
    try:
        assert supervisor.wait(90 * PATIENCE) == 0, (tmp_path / "output.txt").read_text()
    finally:
        supervisor.kill()
    assert same_as_undisturbed(tmp_path, undisturbed)
    assert repeated(tmp_path) == [8 - 6, 14 - 12, 22 - 21]
    found = steps_of(tmp_path)
    pauses = [after["at"] - before["at"] for before, after in itertools.pairwise(found)]
    assert sorted(pauses)[-2] < 10 * PATIENCE  # the longest includes the silence
    assert not (tmp_path / "checkpoints").exists()


@needs_shards
def test_a_rank_that_fails_again_and_again_ends_the_job(tmp_path):
    supervisor = start(tmp_path, [[[1], 8, "raise"]] * 5, "--processes=2")
    try:
        assert supervisor.wait(90 * PATIENCE) == 1
    finally:
        supervisor.kill()
    output = (tmp_path / "output.txt").read_text()
    assert "is not replaced: it died 3 times after step 8" in output
    assert [one["step"] for one in steps_of(tmp_path)].count(8) == 3


def test_a_host_dies_and_another_takes_its_place(tmp_path, undisturbed):
    """Two supervisors are two hosts: each has memory of its own."""
    place = ["--processes=1", "--hosts=2", f"--coordinator=127.0.0.1:{free_port()}"]
    deaths = [[[1], 8, "host"], [[0], 15]]
    supervisors = [start(tmp_path, deaths, *place, f"--host-rank={rank}") for rank in range(2)]
    try:
        supervisors[1].wait(60 * PATIENCE)
        supervisors.append(start(tmp_path, deaths, *place, "--host-rank=1"))
        codes = [one.wait(90 * PATIENCE) for one in supervisors]
        assert codes == [0, -9, 0], (tmp_path / "output.txt").read_text()
    finally:
        for one in supervisors:
            one.kill()
    assert same_as_undisturbed(tmp_path, undisturbed)
    lost, other = repeated(tmp_path)
    assert lost in (8 - 6, 8 - 3)  # the copy of step 6 may still have been on its way to the other host
    assert other == 15 - 12
    assert "the copies of 2 ranks in memory, 1 of them from another host" in (tmp_path / "output.txt").read_text()


@needs_shards
def test_a_rank_of_another_host_that_fails_again_and_again_ends_the_job(tmp_path):
    place = ["--processes=1", "--hosts=2", f"--coordinator=127.0.0.1:{free_port()}"]
    supervisors = [start(tmp_path, [[[1], 8, "raise"]] * 5, *place, f"--host-rank={rank}") for rank in range(2)]
    try:
        assert [one.wait(90 * PATIENCE) for one in supervisors] == [1, 1], (tmp_path / "output.txt").read_text()
    finally:
        for one in supervisors:
            one.kill()


@pytest.mark.parametrize(
    ("kind", "first"), [("stages", 7), ("restart", 7), pytest.param("fabric", 1, marks=needs_shards)]
)
def test_others_continue_from_the_newest_checkpoint(tmp_path, kind, first):
    """Pipelines, and data parallel training that was asked to; a plain loop has none, and begins again."""
    losses = {}
    for name in ("undisturbed", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "undisturbed":
            (folder / "died").touch()
        job = supervise(
            folder, ["--processes=2"], [str(Path(__file__).with_name("together_worker.py")), str(folder), kind]
        )
        try:
            assert job.wait(60 * PATIENCE) == 0, (folder / "output.txt").read_text()
        finally:
            job.kill()
        losses[name] = [line.split() for line in (folder / "steps.txt").read_text().splitlines()]
    expected, found = losses["undisturbed"], losses["killed"]
    assert found in ([*expected[:7], *expected[first - 1 :]], [*expected[:6], *expected[first - 1 :]])
