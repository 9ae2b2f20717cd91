# SPDX-License-Identifier: Apache-2.0
"""The hosts' copy of the source folder."""

import io

import pytest

from lightning_sagemaker.launch import run_local_cluster
from lightning_sagemaker.simulator.hosts import without_gpus


@pytest.mark.parametrize("root", ["out", "deep/out", "."])
def test_hosts_inside_the_source_folder_are_not_copied(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text("exit 0\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "kept").touch()
    for _ in range(2):  # the second run finds the hosts of the first
        result = run_local_cluster(
            ["bash", "train.sh"], hosts=2, distribution="none", source_dir=".", root=root, output=io.StringIO()
        )
        assert result.returncode == 0
    copies = sorted(tmp_path.rglob("train.sh"))
    assert len(copies) == 3  # the source, and one on each host
    assert all((copy.parent / "deep" / "kept").is_file() for copy in copies)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"ACCELERATE_USE_CPU": "true"}),
        ({"ACCELERATE_USE_CPU": "false"}, {}),
        ({"ACCELERATE_USE_SAGEMAKER": "true"}, {"ACCELERATE_TORCH_DEVICE": "cpu"}),
        (
            {"ACCELERATE_USE_SAGEMAKER": "true", "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": "NO"},
            {"ACCELERATE_USE_CPU": "true"},
        ),
    ],
)
def test_accelerate_is_told_that_there_is_no_gpu(given, found):
    """Where it is to use SMDDP, by the device alone: otherwise it creates no process group and fails."""
    assert without_gpus(0, given, {}) == found
    assert without_gpus(1, given, {}) == {}
