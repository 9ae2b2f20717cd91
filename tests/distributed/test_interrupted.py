# SPDX-License-Identifier: Apache-2.0
"""Stages and shared matrices stop together, and go on where they ended."""

import shutil
from pathlib import Path

import boto3
import pytest

from lightning_sagemaker.checkpoint.find import find_checkpoint
from tests.chaos.s3_server import Servers
from tests.conftest import Runs, fork_ranks, read_ranks

PARTS = ["stages, parts", "tensor, parts", "beside, parts"]
LAYOUTS = ["stages", "tensor", *PARTS, *(f"{name}, s3" for name in PARTS)]
BRIEF = ("stages", "tensor, parts", "beside, parts, s3")
"""Layouts of a launch of their own: those of the others are tested by `make test-extended`."""
KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
WORKER = Path(__file__).with_name("interrupted_worker.py")


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    """True -> what the launch of the brief ones wrote; False -> that of the others."""

    def make(brief):
        folder, servers = tmp_path_factory.mktemp("interrupted"), Servers()
        boto3.client("s3", endpoint_url=servers.direct, **KEYS).create_bucket(Bucket="parts")
        environment = {name.upper(): value for name, value in KEYS.items() if name != "region_name"}
        environment["LAYOUTS"] = ";".join(name for name in LAYOUTS if (name in BRIEF) == brief)
        try:
            fork_ranks(
                WORKER, folder, processes=2, PLACE="s3://parts/run", AWS_REGION="us-east-1",
                AWS_ENDPOINT_URL=servers.endpoint, **environment,
            )  # fmt: skip
        finally:
            servers.close()
        return Found(read_ranks(folder), folder)

    return Runs(make)


class Found(list):
    """What the ranks wrote, and where their checkpoints are."""

    def __init__(self, ranks, folder):
        super().__init__(ranks)
        self.folder = folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_ranks_stop_and_go_on(launches, layout):
    for found in (rank[layout] for rank in launches[layout in BRIEF]):
        assert found["code"] == 143
        assert 3 < len(found["first"]) < len(found["calm"]) == 16
        assert found["first"] + found["second"] == pytest.approx(found["calm"], abs=1e-6)


@pytest.mark.parametrize("layout", PARTS)
@pytest.mark.parametrize("damage", ["flipped", "gone", "short"])
def test_a_part_that_is_damaged_is_noticed(launches, layout, damage, tmp_path):
    shutil.copytree(launches[layout in BRIEF].folder / layout, tmp_path / "run")
    whole = find_checkpoint(tmp_path / "run")
    (part, *_) = sorted(whole.path.glob("__1_*.distcp"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        part.unlink()
    else:
        part.write_bytes(content if damage == "flipped" else content[:-10])
    said = []
    older = find_checkpoint(tmp_path / "run", said.append)
    assert older is None or older.step < whole.step
    assert part.name in said[0]


def test_clocks_that_differ_are_noticed(launches):
    for same, differing in (rank["spread"] for rank in launches[True]):
        assert 0 <= same < 5
        assert 3595 < differing < 3605


def test_streams_of_different_length_end_together(launches):
    assert [rank["uneven"] for rank in launches[True]] == [{"steps": 6, "cut_short": 0}, {"steps": 6, "cut_short": 2}]
