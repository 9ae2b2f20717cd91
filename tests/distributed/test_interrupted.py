# SPDX-License-Identifier: Apache-2.0
"""Stages and shared matrices stop together, and go on where they ended."""

from pathlib import Path

import boto3
import pytest

from tests.chaos.s3_server import Servers
from tests.conftest import read_ranks, torchrun

LAYOUTS = ["stages", "stages, parts", "tensor", "tensor, parts", "stages, parts, s3", "tensor, parts, s3"]
KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
WORKER = Path(__file__).with_name("interrupted_worker.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder, servers = tmp_path_factory.mktemp("interrupted"), Servers()
    boto3.client("s3", endpoint_url=servers.direct, **KEYS).create_bucket(Bucket="parts")
    environment = {name.upper(): value for name, value in KEYS.items() if name != "region_name"}
    try:
        torchrun(
            WORKER, folder, processes=2, PLACE="s3://parts/run", AWS_REGION="us-east-1", AWS_ENDPOINT_URL=servers.endpoint,
            **environment,
        )  # fmt: skip
    finally:
        servers.close()
    return read_ranks(folder)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_ranks_stop_and_go_on(ranks, layout):
    for found in (rank[layout] for rank in ranks):
        assert found["code"] == 143
        assert 3 < len(found["first"]) < 32
        assert found["first"] + found["second"] == pytest.approx(found["calm"], abs=1e-6)


def test_streams_of_different_length_end_together(ranks):
    assert [rank["uneven"] for rank in ranks] == [{"steps": 6, "cut_short": 0}, {"steps": 6, "cut_short": 2}]
