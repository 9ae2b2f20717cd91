# SPDX-License-Identifier: Apache-2.0
"""Files of ranks in a host's memory: complete or absent, and which step can be continued from."""

import os
import subprocess
import sys

import pytest

from lightning_sagemaker.checkpoint import host_memory
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.host_memory import HostMemory, RankFile, launcher_folder, newest_complete


def files(*steps_of_ranks: tuple[int, ...], of: int = 2) -> list[set[RankFile]]:
    return [{RankFile(step, rank, of) for step in steps} for rank, steps in enumerate(steps_of_ranks)]


@pytest.mark.parametrize(
    ("found", "step"),
    [
        (files((3, 6), (3, 6)), 6),
        (files((3, 6), (3,)), 3),  # one was killed while it wrote
        (files((3,), (6,)), None),
        (files((3,), ()), None),
        (files((3, 6), (3, 6), of=4), None),  # of a job of another size
        ([{RankFile(3, 0, 2)}, {RankFile(3, 0, 2), RankFile(3, 1, 2)}], 3),  # the second host has both
        ([set(), set()], None),
    ],
)
def test_the_newest_step_of_which_all_ranks_are_somewhere(found, step):
    assert newest_complete(found) == step


def test_what_could_not_be_written_is_not_there(tmp_path):
    memory, file = HostMemory(tmp_path / "job"), RankFile(3, 0, 2)

    def fill(path):
        path.write_bytes(b"half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        memory.write(file, fill)
    assert os.listdir(memory.folder) == []
    memory.write(file, lambda path: path.write_bytes(b"whole"))
    assert memory.files() == {file}
    assert memory.path(file).read_bytes() == b"whole"


def test_files_are_removed_by_step_and_what_is_unfinished_too(tmp_path):
    memory = HostMemory(tmp_path / "job")
    for step in (3, 6, 9):
        memory.write(RankFile(step, 0, 1), lambda path: path.touch())
    (memory.folder / f"{host_memory._NEW}left").touch()
    memory.remove_before(6)
    assert {file.step for file in memory.files()} == {6, 9}
    memory.keep([9])
    assert {file.step for file in memory.files()} == {9}
    memory.remove()
    assert not memory.folder.exists()


def test_only_this_user_can_look(tmp_path):
    memory = HostMemory(tmp_path / "job")
    assert memory.folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(CheckpointError, match="another user"):
        HostMemory(tmp_path / "job")


def test_a_launcher_has_a_folder_and_those_of_dead_launchers_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(host_memory, "_SHARED", tmp_path)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert launcher_folder(0) is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    base = tmp_path / f"lightning-sagemaker-{os.getuid()}"
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    for name in (f"{done.pid}-1.0", f"{os.getpid()}-1.0"):  # the second one's number is in use again
        (base / name).mkdir(parents=True)
    alive = base / f"{os.getpid()}-{host_memory._started(os.getpid())}.1"
    alive.mkdir()
    assert launcher_folder(2) == base / f"{os.getppid()}-{host_memory._started(os.getppid())}.2"
    assert list(base.iterdir()) == [alive]


def test_a_machine_without_shared_memory_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(host_memory, "_SHARED", tmp_path / "missing")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(CheckpointError, match="HINT"):
        launcher_folder(0)
