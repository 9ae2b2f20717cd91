# SPDX-License-Identifier: Apache-2.0
"""Ranks of a sharded training are killed, torchrun restarts all of them, and they continue from what is in memory."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lightning_sagemaker.simulator.hosts import free_port
from tests.conftest import Runs, fork_ranks
from tests.skips import needs_shards

WORKER = Path(__file__).with_name("memory_worker.py")
STEPS, EVERY = 24, 3
DEATHS = {
    "undisturbed": [],
    "one rank, then all": [[[1], 8], [[0, 1], 22]],
    "before there is a copy": [[[0], 2]],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    def run(name: str) -> Path:
        folder = tmp_path_factory.mktemp("memory")
        arguments = folder, json.dumps(DEATHS[name]), EVERY
        fork_ranks(WORKER, *arguments, processes=2, timeout=120, TEST_MAX_RESTARTS=str(len(DEATHS[name])))
        return folder

    return Runs(run)


def steps_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def same_as_undisturbed(folder: Path, undisturbed: Path) -> bool:
    losses = {one["step"]: one["loss"] for one in steps_of(undisturbed)}
    assert sorted(losses) == list(range(1, STEPS + 1))
    found = steps_of(folder)
    assert all(one["loss"] == losses[one["step"]] for one in found)
    assert {one["step"] for one in found} == set(losses)
    for path in undisturbed.glob("rank-*.pt"):
        for one, other in zip(torch.load(path), torch.load(folder / path.name), strict=True):
            assert torch.equal(one, other)
    return (folder / "epochs.jsonl").read_text() == (undisturbed / "epochs.jsonl").read_text()


def repeated(folder: Path) -> list[int]:
    """How many steps each life repeats of the one before."""
    lives: dict[int, list[int]] = {}
    for one in steps_of(folder):
        lives.setdefault(one["life"], []).append(one["step"])
    return [lives[n][-1] - lives[n + 1][0] + 1 for n in range(len(lives) - 1)]


@pytest.mark.parametrize("deaths", ["one rank, then all", "before there is a copy"])
def test_it_continues_as_if_nothing_had_happened(runs, deaths):
    assert same_as_undisturbed(runs[deaths], runs["undisturbed"])


def test_a_restart_repeats_the_steps_since_the_last_copy(runs):
    assert repeated(runs["one rank, then all"]) == [8 - 6, 22 - 21]
    assert repeated(runs["before there is a copy"]) == [2]


def test_nothing_is_written_to_a_disk_and_nothing_is_left_in_memory(runs):
    assert not (runs["one rank, then all"] / "checkpoints").exists()
    base = Path(f"/dev/shm/lightning-sagemaker-{os.getuid()}")
    launchers = [folder.name.partition("-")[0] for folder in base.iterdir()] if base.exists() else []
    assert not [pid for pid in launchers if not Path(f"/proc/{pid}").exists()]


def test_training_goes_on_without_copies_when_memory_is_full(tmp_path, runs):
    fork_ranks(WORKER, tmp_path, "[]", EVERY, processes=2, timeout=120, TEST_MAX_RESTARTS="1", MEMORY_IS_FULL="[1, 9]")
    assert same_as_undisturbed(tmp_path, runs["undisturbed"])
    said = (tmp_path / "warned").read_text()
    assert "rank 1: OSError: [Errno 28] No space left on device" in said
    assert "HINT: give the container more shared memory" in said


def test_a_later_fit_of_a_script_continues_from_its_own_copies(tmp_path):
    """The first fit is over and begins again with the processes; only the second has copies."""
    for name, deaths in (("left alone", []), ("killed", [[[1], 8]])):
        (tmp_path / name).mkdir()
        lives = {"TEST_MAX_RESTARTS": str(len(deaths)), "FITS": "2"}
        fork_ranks(WORKER, tmp_path / name, json.dumps(deaths), EVERY, processes=2, timeout=120, **lives)
    expected, found = (steps_of(tmp_path / name) for name in ("left alone", "killed"))
    losses = {(one["fit"], one["step"]): one["loss"] for one in expected}
    assert all(one["loss"] == losses[one["fit"], one["step"]] for one in found)
    assert [one["step"] for one in found if one["life"] == 1 and one["fit"] == 0] == [*range(1, STEPS + 1)]
    assert next(one["step"] for one in found if one["life"] == 1 and one["fit"] == 1) == 7


def agent(folder: Path, port: int, deaths: list, name: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=2"]
    command += [
        "--rdzv-conf=keep_alive_interval=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{port}",
        str(WORKER),
        str(folder),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # or a new agent waits for what others have said once
    log = (folder / f"agent-{name}.txt").open("a")
    return subprocess.Popen([*command, json.dumps(deaths), str(EVERY)], env=environment, stdout=log, stderr=log)


def _until_it_listens(port: int) -> None:
    """A loaded machine takes long to import torch."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on port {port}")


@needs_shards
def test_a_new_host_gets_its_state_from_the_memory_of_the_next_one(runs, tmp_path):
    """Two agents are two hosts: each has a folder of its own. One dies with its rank, and another one takes its place."""
    port, deaths = free_port(), [[[1], 8, "host"]]
    agents = [agent(tmp_path, port, deaths, "stays")]
    try:
        _until_it_listens(port)
        time.sleep(2)  # the first to come has rank zero
        lost = agent(tmp_path, port, deaths, "dies")
        agents.append(lost)
        lost.wait(timeout=120)
        time.sleep(6)  # torchrun takes a new host for a third one until it misses the lost one's signs of life
        agents.append(agent(tmp_path, port, deaths, "comes"))
        assert [one.wait(timeout=180) for one in agents] == [0, -9, 0]
    finally:
        for one in agents:
            one.kill()
    assert "1 of them from another host" in (tmp_path / "agent-stays.txt").read_text()
    assert same_as_undisturbed(tmp_path, runs["undisturbed"])
    assert not (tmp_path / "checkpoints").exists()
