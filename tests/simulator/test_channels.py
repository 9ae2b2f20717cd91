# SPDX-License-Identifier: Apache-2.0
"""A channel that is a folder of this machine, as a script in a container would see it."""

import os

import pytest

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.simulator import channels
from lightning_sagemaker.simulator.channels import link_channel


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "mine"
    (folder / "deep" / "empty").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for path in ("a.csv", "deep/b.csv", "../elsewhere/c.csv"):
        (folder / path).write_text(path)
    (folder / "link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    return folder


def test_a_walk_from_above_finds_the_files(data, tmp_path):
    root = tmp_path / "host" / "input" / "data"
    for _ in range(2):  # the second replaces the first
        link_channel(data, root / "train")
        found = {os.path.join(place, name) for place, _, names in os.walk(root) for name in names}
        assert found == {str(root / "train" / name) for name in ("a.csv", "deep/b.csv")}
        assert (root / "train" / "link" / "c.csv").read_text() == "../elsewhere/c.csv"
        assert (root / "train" / "deep" / "empty").is_dir()
        (root / "train" / "cache.bin").touch()
        (root / "train" / "a.csv").unlink()
    assert sorted(os.listdir(data)) == ["a.csv", "deep", "link"]  # what a script adds and deletes is not the user's


def test_a_large_folder_is_linked_as_a_whole_and_one_line_says_so(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(channels, "MOST", 3)
    for _ in range(2):
        link_channel(data, tmp_path / "train")
        assert (tmp_path / "train").is_symlink()
        assert (tmp_path / "train" / "deep" / "b.csv").is_file()
    assert capsys.readouterr().err.count(f"{data.resolve()} has more than 3 files") == 1


def test_a_folder_within_the_hosts_own_is_left_alone(data):
    for target in (data, data.parent):
        with pytest.raises(LaunchError, match="within the host's own. HINT"):
            link_channel(data, target)
    assert (data / "deep" / "b.csv").is_file()
