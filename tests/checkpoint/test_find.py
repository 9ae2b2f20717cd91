# SPDX-License-Identifier: Apache-2.0
"""Checkpoints are written whole, and the newest whole one is found."""

import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sagemaker.checkpoint.atomic_write import CheckpointError, atomic_write
from lightning_sagemaker.checkpoint.find import find_checkpoint
from lightning_sagemaker.checkpoint.io import SafeCheckpointIO


def write(path: Path, step: int, **more) -> Path:
    content = {"global_step": step, "state_dict": {"weight": torch.arange(1000.0)}, **more}
    SafeCheckpointIO().save_checkpoint(content, path)
    return path


def test_the_most_steps_win_whatever_the_file_times(tmp_path):
    newest = write(tmp_path / "last.ckpt", 30)
    for number, name in enumerate(("last-v1.ckpt", "auto-step=9.ckpt", "step=20.ckpt")):
        write(tmp_path / name, 10 * number)
    os.utime(newest, (0, 0))
    found = find_checkpoint(tmp_path)
    assert (found.path, found.step) == (newest, 30)


def test_nothing_is_a_fresh_start(tmp_path):
    assert find_checkpoint(tmp_path) is None
    assert find_checkpoint(tmp_path / "absent") is None


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "text"])
def test_damaged_ones_are_skipped_with_a_line(tmp_path, damage):
    good, bad = write(tmp_path / "a.ckpt", 1), write(tmp_path / "b.ckpt", 2)
    content = bytearray(bad.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 16
    bad.write_bytes({"empty": b"", "short": content[:-10], "flipped": content, "text": b"no"}[damage])
    said = []
    assert find_checkpoint(tmp_path, said.append).path == good
    assert len(said) == 1
    assert "b.ckpt" in said[0]
    assert "skipping it" in said[0]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_damage_goes_unnoticed_or_raises(tmp_path_factory, data):
    """Any byte of the file changed, or its end cut off: the tensors are right, or the file is not used."""
    folder = tmp_path_factory.mktemp("fuzz")
    path = write(folder / "a.ckpt", 7)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    found = find_checkpoint(folder, lambda line: None)
    if found is not None:
        loaded = torch.load(found.path, weights_only=True)
        assert loaded["global_step"] == 7
        assert torch.equal(loaded["state_dict"]["weight"], torch.arange(1000.0))


# Offsets in an entry of a zip archive's directory: signature, flags, offset of the member; and its attributes.
@pytest.mark.parametrize(("field", "bit"), [(0, 4), (9, 32), (21, 8), (43, 2), (38, 16)])
def test_damage_of_the_archives_directory_is_not_that_of_a_class(tmp_path, field, bit):
    """zipfile finds no fault in it; torch does, or reads nothing of a tensor and returns what was in memory."""
    good = write(tmp_path / "a.ckpt", 1)
    bad = write(tmp_path / "b.ckpt", 2)
    content = bytearray(bad.read_bytes())
    with zipfile.ZipFile(bad) as archive:
        entry = content.index(b"archive/data/0", archive.start_dir) - 46
    content[entry + field] ^= bit
    bad.write_bytes(content)
    said = []
    assert find_checkpoint(tmp_path, said.append).path == good
    assert len(said) == 1
    assert "b.ckpt" in said[0]


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_no_checkpoint(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "a.ckpt").write_bytes(content)
    assert find_checkpoint(folder, lambda line: None) is None


class Thing:
    """Not data."""


def test_code_is_not_run_and_work_is_not_lost(tmp_path):
    write(tmp_path / "a.ckpt", 1)
    write(tmp_path / "b.ckpt", 2, thing=Thing())
    with pytest.raises(CheckpointError, match="could run code.*HINT"):
        find_checkpoint(tmp_path)
    assert find_checkpoint(tmp_path, weights_only=False).step == 2


def test_a_failed_write_leaves_the_file_before(tmp_path):
    path = write(tmp_path / "a.ckpt", 1)
    before = path.read_bytes()
    (tmp_path / ".a.ckpt.123.part").write_bytes(b"left by a killed process")

    def fail() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["a.ckpt"]


def test_no_permission_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"may write to"):
        write(tmp_path / "file" / "a.ckpt", 1)


@pytest.fixture
def read_by_another_user():
    """A folder that others may enter; root, who may read everything, is nobody until the end."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        user = os.geteuid()

        def become() -> None:
            if user == 0:
                os.seteuid(65534)

        yield folder, become
        os.seteuid(user)
        folder.chmod(0o755)


@pytest.mark.parametrize("unreadable", ["file", "part", "folder of parts", "folder"])
def test_what_may_not_be_read_is_not_taken_for_damaged(read_by_another_user, unreadable):
    """An older one would be resumed from, or none, without the work since."""
    folder, become = read_by_another_user
    write(folder / "a.ckpt", 1)
    (folder / "b.ckpt").mkdir()
    torch.save({"global_step": 2}, folder / "b.ckpt" / "meta.pt")
    write(folder / "c.ckpt", 3)
    secret = {"file": "c.ckpt", "part": "b.ckpt/meta.pt", "folder of parts": "b.ckpt", "folder": "."}[unreadable]
    (folder / secret).chmod(0)
    become()
    with pytest.raises(
        CheckpointError, match=r"could not be read \(Permission denied\).*HINT: let this process's user"
    ):
        find_checkpoint(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_says_how_much_room_is_needed(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("mounting is not permitted")
    try:
        path = write(tmp_path / "a.ckpt", 1)
        before = path.read_bytes()
        with pytest.raises(CheckpointError, match=r"no space left.*1\.0 MiB are free|no space left") as caught:
            write(path, 2, more=torch.zeros(10**6))
        assert "MiB more are needed" in str(caught.value)
        assert path.read_bytes() == before
        assert len(list(tmp_path.iterdir())) == 1
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=False)


def test_weights_only_are_not_resumed_from_and_exact_ones_come_first(tmp_path):
    """Lightning's ``save_weights_only``, and a checkpoint that an exception made after the last step."""
    good = write(tmp_path / "auto-step=5.ckpt", 5, loops={}, callbacks={}, lightning_sagemaker={})
    write(tmp_path / "exception.ckpt", 5, loops={}, callbacks={})
    write(tmp_path / "weights.ckpt", 9, loops={})
    said = []
    assert find_checkpoint(tmp_path, said.append).path == good
    assert "weights only" in said[0]


class Stubborn:
    """Cannot be made from its state."""

    def __setstate__(self, state):
        raise AttributeError("no shape")


def test_a_complete_one_that_cannot_be_loaded_is_an_error(tmp_path):
    """Training would start from an older one, or from scratch."""
    write(tmp_path / "a.ckpt", 1)
    path = write(tmp_path / "b.ckpt", 2)
    content = torch.load(path) | {"hyper_parameters": {"spec": Stubborn()}}
    content["hyper_parameters"]["spec"].value = 1
    torch.save(content, path)
    with pytest.raises(
        CheckpointError, match=r"b\.ckpt is complete, but holds more than tensors .*HINT: keep objects out"
    ):
        find_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"is complete, but cannot be loaded \(AttributeError: no shape\).*HINT"):
        find_checkpoint(tmp_path, weights_only=False)
