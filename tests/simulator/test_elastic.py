# SPDX-License-Identifier: Apache-2.0
"""Hosts that join and leave a simulated job: the training is the one of a job of fixed size."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.simulator.elastic import ElasticHosts, host_range, parse_schedule
from tests.chaos import recovery_training
from tests.chaos.recovery import Setting
from tests.chaos.recovery_compare import compare, rows

SETTING = Setting(3, samples=3600, epochs=2, optimizer="adamw", dropout=0.1)
linux = pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")


def local(folder: Path, hosts: str, *options: str) -> list[str]:
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "local", "--hosts", hosts, "--timeout", "180"]
    command += ["--root", str(folder / "root"), *options, "--", "python", recovery_training.__file__, str(folder)]
    return [*command, *SETTING.arguments]


def batches_of(folder: Path, rank: int) -> int:
    return sum(1 for _ in rows(folder / f"rank-{rank}.jsonl"))


@linux
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_hosts_join_and_leave_and_the_training_is_the_same(tmp_path):
    alone, folder = tmp_path / "fixed", tmp_path / "elastic"
    for place in (alone, folder):
        place.mkdir()
    fixed = subprocess.run(local(alone, "3:3"), capture_output=True, text=True, timeout=200, check=False)
    assert fixed.returncode == 0, fixed.stdout[-3000:]
    with (tmp_path / "output.txt").open("w") as output:
        job = subprocess.Popen(local(folder, "1:3"), stdout=output, stderr=subprocess.STDOUT)
    file = folder / "root" / "hosts"

    def wait_for(rank: int, above: int = 0) -> None:
        deadline = time.monotonic() + 90
        while batches_of(folder, rank) <= above and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert job.poll() is None, (tmp_path / "output.txt").read_text()[-3000:]

    wait_for(0)
    file.write_text("3")
    wait_for(1)
    wait_for(2)
    file.write_text("2")
    time.sleep(1)
    wait_for(1, batches_of(folder, 1) + 3)
    said = (tmp_path / "output.txt").read_text()
    assert "algo-3 leaves the job" in said
    assert "rank 2 leaves after step" in said
    assert job.wait(120) == 0, (tmp_path / "output.txt").read_text()[-3000:]
    assert "is lost" not in (tmp_path / "output.txt").read_text()  # no step was done twice
    assert compare(alone, folder, SETTING, 2) == []
    tries = [(row["epoch"], tuple(row["samples"])) for n in range(3) for row in rows(folder / f"rank-{n}.jsonl")]
    assert len(tries) == len(set(tries)) == 2 * 3600 // 8


@pytest.mark.parametrize(
    ("text", "bounds"),
    [("2", (2, 2)), ("2:4", (2, 4)), ("3:3", (3, 3))],
)
def test_hosts_are_a_number_or_a_range(text, bounds):
    assert host_range(text) == bounds


@pytest.mark.parametrize("text", ["0", "4:2", "two", "2:", "-1", "1:2:3"])
def test_other_words_for_hosts_are_refused(text):
    with pytest.raises(LaunchError, match="HINT: set an integer >= 1, or MIN:MAX"):
        host_range(text)


def test_a_schedule_says_how_many_there_shall_be():
    assert parse_schedule("10:+1, 12.5:+1,30:-2", 2, 4) == [(10.0, 3), (12.5, 4), (30.0, 2)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("10:1", "has '10:1'"),
        ("20:+1,10:+1", "has '10:\\+1'"),
        ("10:+3", "leads to 5 host"),
        ("10:-1", "leads to 1 host"),
    ],
)
def test_a_wrong_schedule_is_one_sentence(text, sentence):
    with pytest.raises(LaunchError, match=f"{sentence}.*HINT"):
        parse_schedule(text, 2, 4)


class _Hosts:
    """Hosts that start and end at once."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.left: list[str] = []
        self.over = False

    def is_running(self, host: str) -> bool:
        return host in self.running

    def is_over(self) -> bool:
        return self.over

    def ask_to_leave(self, host: str) -> None:
        self.running.remove(host)
        self.left.append(host)

    def dismiss(self, host: str) -> None:
        self.running.remove(host)


def test_the_file_of_hosts_is_followed(tmp_path):
    hosts, said = _Hosts(), []
    names = ["algo-1", "algo-2", "algo-3"]
    file = tmp_path / "hosts"
    elastic = ElasticHosts(
        names, 1, [(0.0, 2)], file, hosts, lambda index: hosts.running.append(names[index]), said.append
    )
    assert hosts.running == ["algo-1"]
    elastic.tick()
    assert (hosts.running, file.read_text()) == (["algo-1", "algo-2"], "2\n")
    file.write_text("7")
    elastic.tick()
    elastic.tick()
    assert said[-1].endswith("says '7'. HINT: write a number from 1 to 3")
    file.write_text("1")
    elastic.tick()
    assert hosts.left == ["algo-2"]
    hosts.over = True
    file.write_text("3")
    elastic.tick()
    assert hosts.running == ["algo-1"]


@linux
def test_a_schedule_needs_a_range_of_hosts(tmp_path):
    for options, sentence in (
        (("2", "--schedule", "1:+1"), "hosts=2 is a fixed number"),
        (("1:2", "--distribution", "mpi"), "was set with hosts that join and leave"),
    ):
        done = subprocess.run(local(tmp_path, *options), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
