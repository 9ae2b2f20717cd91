# SPDX-License-Identifier: Apache-2.0
"""Shards in a server with the API of S3 that cuts, breaks, refuses and alters what it sends."""

import boto3
import numpy as np
import pytest
from botocore.config import Config

from lightning_sagemaker.data import block_index
from lightning_sagemaker.data.block_index import index_shards, index_text, read_index
from tests.chaos.s3_server import Servers
from tests.chaos.streamed_case import LENGTH, ROWS


@pytest.fixture(scope="module")
def servers():
    found = Servers()
    yield found
    found.close()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("shards"), np.random.default_rng(0)
    names = {"": [], "-segments": []}
    for number, rows in enumerate(ROWS):
        for ending, shape in (("", (rows, LENGTH)), ("-segments", (rows,))):
            name = f"train-{number:05d}{ending}.npy"
            np.save(folder / name, random.integers(0, 60000, shape).astype(np.uint16))
            names[ending].append(name)
    return folder, {"train": list(names.values())}


@pytest.fixture
def index(shards, monkeypatch):
    monkeypatch.setattr(block_index, "BLOCK_BYTES", 1 << 11)  # 64 rows
    found = read_index(index_text(index_shards(*shards)))
    assert (found["train"].block, found["train"].blocks) == (64, 14)
    return found


@pytest.fixture
def bucket(servers, shards, monkeypatch):
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    client = boto3.client("s3", endpoint_url=servers.direct, config=Config(s3={"addressing_style": "path"}))
    client.create_bucket(Bucket="corpus")
    for file in shards[0].iterdir():
        client.upload_file(str(file), "corpus", f"some/shards/{file.name}")
    servers.faults.clear()
    servers.requests.clear()
    return client
