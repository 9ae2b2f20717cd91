# SPDX-License-Identifier: Apache-2.0
"""What is looked at before a job begins."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sagemaker.cli import main
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.preflight import preflight
from lightning_sagemaker.simulator import hosts
from lightning_sagemaker.simulator.hosts import free_port
from lightning_sagemaker.strategies.trainer_defaults import run_preflight


def job(root: Path, **facts) -> SageMakerJob:
    folders = {name: root / name for name in ("checkpoint_dir", "output_dir", "model_dir")}
    return SageMakerJob(in_container=True, **{**folders, **facts})


def test_all_is_well(tmp_path):
    assert preflight(job(tmp_path / "not" / "there")) == []
    assert not list(tmp_path.iterdir())  # a check leaves nothing behind


def test_folders_that_cannot_be_written_to(tmp_path):
    (tmp_path / "checkpoint_dir").touch()
    (problem,) = preflight(job(tmp_path))
    assert "checkpoint_dir cannot be written to" in problem
    assert "HINT" in problem


def test_folders_that_cannot_be_looked_into(tmp_path):
    """By a user of its own, as root may look into everything."""
    closed = tmp_path / "closed"
    (closed / "within").mkdir(parents=True)
    closed.chmod(0)
    code = (
        "import os, sys; from pathlib import Path; from lightning_sagemaker.preflight import _writable;"
        "os.geteuid() or os.seteuid(65534); print(*_writable(Path(sys.argv[1]) / 'within' / 'model'))"
    )
    done = subprocess.run([sys.executable, "-c", code, closed], capture_output=True, text=True, check=True)
    closed.chmod(0o700)
    assert "model cannot be written to (Permission denied). HINT" in done.stdout


def test_room_for_the_next_checkpoint(tmp_path):
    (tmp_path / "checkpoint_dir").mkdir()
    with (tmp_path / "checkpoint_dir" / "a.ckpt").open("wb") as file:
        file.truncate(2**43)  # takes no room itself
    (problem,) = preflight(job(tmp_path))
    assert "larger volume_size" in problem


def test_shared_memory(tmp_path):
    (problem,) = preflight(job(tmp_path, num_gpus=2**20))
    assert "--shm-size" in problem


def test_shared_memory_that_is_not_there(tmp_path):
    (problem,) = preflight(job(tmp_path), shared_memory=tmp_path / "nothing")
    assert "num_workers=0" in problem


def test_names_and_port(tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        facts = {"hosts": ("127.0.0.1", "no-such-host.invalid"), "num_nodes": 2, "node_rank": 0, "main_port": port}
        name, meeting = preflight(job(tmp_path, **facts))
    assert "the name no-such-host.invalid does not resolve" in name
    assert f"port {port}" in meeting


@pytest.mark.parametrize(("local_rank", "problems"), [(None, 1), ("0", 1), ("1", 0)])
def test_processes_that_lightning_starts_do_not_look_again(tmp_path, monkeypatch, caplog, local_rank, problems):
    """Their port is taken by the first of their host."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        run_preflight(job(tmp_path, num_nodes=2, node_rank=0, main_port=taken.getsockname()[1]))
    assert len(caplog.records) == problems


@pytest.mark.parametrize("broken", [False, True])
def test_the_command(tmp_path, monkeypatch, capsys, broken):
    monkeypatch.setattr(SageMakerJob, "from_environment", classmethod(lambda cls: job(tmp_path)))
    if broken:
        (tmp_path / "model_dir").touch()
    assert main(["doctor", "--preflight"]) == int(broken)
    assert ("Ready to start." in capsys.readouterr().out) is not broken


def test_a_free_port_is_none_that_a_connection_may_take_meanwhile(monkeypatch):
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40
    assert all(10000 <= port < 32768 for port in ports)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(hosts, "_LISTENERS", [taken.getsockname()[1]] * 100)
        assert free_port() != taken.getsockname()[1]
