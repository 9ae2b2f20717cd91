# SPDX-License-Identifier: Apache-2.0
"""What stands for SageMaker when a request is run here, apart from the drivers."""

import io

import pytest

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.simulator.request_runner import run_request

PROGRAM = "echo data: $(cat /opt/ml/input/data/train/*); echo runs: $(ls /opt/ml/checkpoints | wc -l); "
PROGRAM += "touch /opt/ml/checkpoints/$(ls /opt/ml/checkpoints | wc -l)"


def request_of(program=PROGRAM, **source):
    source = source or {"S3DataSource": {"S3Uri": "s3://bucket/train", "S3DataType": "S3Prefix"}}
    return {
        "TrainingJobName": "job",
        "AlgorithmSpecification": {"ContainerEntrypoint": ["sh", "-c", program] if program else []},
        "ResourceConfig": {"InstanceCount": 2, "InstanceType": "ml.g5.xlarge"},
        "InputDataConfig": [{"ChannelName": "train", "DataSource": source}],
    }


def fetch(address, folder):
    assert address == "s3://bucket/train"
    (folder / "object").write_text("from S3")


def run(root, request, **options):
    output = io.StringIO()
    result = run_request(request, fetch, root, output=output, timeout=60, **options)
    assert result.returncode == 0, output.getvalue()
    return sorted(line.rstrip() for line in lines_of_ranks(output))


def lines_of_ranks(output):
    """Without the line about names, which a machine may not permit."""
    return [line for line in output.getvalue().splitlines() if not line.startswith("lightning-sagemaker:")]


def test_a_folder_that_was_used_keeps_checkpoints_and_gets_new_channels(tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    (local / "file").write_text("from here")
    root = tmp_path / "root"
    for number, (folders, data) in enumerate(
        [
            ({"train": local}, "from here"),
            ({"train": local}, "from here"),
            ({}, "from S3"),
            ({"train": local}, "from here"),
        ]
    ):
        lines = run(root, request_of(), folders=folders)
        assert [line.partition("| ")[2] for line in lines] == [f"data: {data}", f"runs: {number}"] * 2
    assert (local / "file").read_text() == "from here"


@pytest.mark.parametrize("place", ["S3", "here"])
def test_objects_are_divided_among_the_hosts(place, tmp_path):
    """Also those of a folder of this machine, as a rehearsal's sample is."""
    source = {"S3Uri": "s3://bucket/train", "S3DataType": "S3Prefix", "S3DataDistributionType": "ShardedByS3Key"}

    def three(address, folder):
        for name in "abc":
            (folder / name).write_text(name)

    output, local = io.StringIO(), tmp_path / "local"
    local.mkdir()
    three(None, local)
    request = request_of("ls /opt/ml/input/data/train", S3DataSource=source)
    folders = {"train": local} if place == "here" else {}
    root = tmp_path / "root"
    assert run_request(request, three, root, output=output, timeout=60, folders=folders).returncode == 0
    assert sorted(path.name for path in local.iterdir()) == ["a", "b", "c"]
    assert sorted(" ".join(lines_of_ranks(output)).split()) == sorted(
        ["algo-1", "|", "a", "algo-1", "|", "c", "algo-2", "|", "b"]
    )


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (request_of(program=None), r"no ContainerEntrypoint.*HINT: run the image itself"),
        (request_of(FileSystemDataSource={}), r"'train' is a file system.*HINT:.*--rehearse-channel train=DIR"),
    ],
)
def test_what_cannot_be_run_here_is_said(request_, message, tmp_path):
    with pytest.raises(LaunchError, match=message):
        run_request(request_, fetch, tmp_path)
