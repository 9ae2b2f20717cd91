# SPDX-License-Identifier: Apache-2.0
"""The user's command is started as a shell in the job's folder would start it."""

import os

import pytest

from lightning_sagemaker.simulator.contract import LocalClusterError
from lightning_sagemaker.simulator.launchers import Program


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A source folder with ``run.sh``; this process is elsewhere."""
    folder, elsewhere = tmp_path / "source", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "run.sh").touch(mode=0o755)
    monkeypatch.chdir(elsewhere)
    return folder


@pytest.mark.parametrize("name", ["run.sh", "./run.sh"])
def test_a_program_of_the_source_folder_is_found_there(source, name):
    program = Program.parse([name, "--epochs", "1"], source)
    assert program.command == ["./run.sh", "--epochs", "1"]
    assert program.entry_point == "run.sh"  # SM_USER_ENTRY_POINT of the containers


def test_a_program_on_the_path_keeps_its_name(source, tmp_path, monkeypatch):
    (source / "tool").touch(mode=0o755)
    (tmp_path / "tool").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert Program.parse(["tool"], source).command == ["tool"]


def test_a_script_that_is_not_executable_is_named(source):
    (source / "data.sh").touch(mode=0o644)
    with pytest.raises(LocalClusterError, match="'data.sh' is not executable. HINT: run `chmod"):
        Program.parse(["data.sh"], source)


@pytest.mark.parametrize("name", ["absent", "./absent", "../source/absent"])
def test_no_other_is_found(source, name):
    with pytest.raises(LocalClusterError, match=f"{name!r} was not found"):
        Program.parse([name], source)
