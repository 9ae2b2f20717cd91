# SPDX-License-Identifier: Apache-2.0
"""Text streamed from S3 by ranks that are killed: the model is that of the job that was left alone, to the last bit."""

from __future__ import annotations

import sys

import boto3
import pytest
import torch
from safetensors.torch import load_file

from lightning_sagemaker.data import block_index
from lightning_sagemaker.recipes.albert_mlm.prepare_text import main
from tests.chaos.s3_server import Servers
from tests.end_to_end.test_recipes_recover import KILLS, SCRIPT, run

WINDOWED = "from lightning_sagemaker.data import streamed\nstreamed.WINDOW = 4\n" + SCRIPT
ADDRESS = "s3://corpus/text"


@pytest.fixture
def server(tmp_path, monkeypatch):
    servers = Servers()
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_ENDPOINT_URL": servers.endpoint, "XDG_CACHE_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="corpus")
    yield servers
    servers.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_streamed_epoch_loses_no_sample(server, tmp_path, text_file, monkeypatch, workers):
    monkeypatch.setattr(block_index, "BLOCK_BYTES", 1 << 11)  # 32 rows
    prepared = ["--vocab-size", "300", "--sequence-length", "32", "--test-fraction", "0.1", "--workers", "1"]
    assert main([str(text_file), ADDRESS, *prepared]) == 0
    server.latency = 0.02
    options = ["albert-mlm", "--config", "tiny.yaml", "--text", ADDRESS, "--max_seq_length", "32", "--max_steps", "400"]
    options += ["--global_batch_size", "16", "--data.num_workers", str(workers), "--val_check_interval", "40"]
    run(tmp_path / "alone", [*options, "--cache_dir", str(tmp_path / "a")], 0, WINDOWED)
    run(tmp_path / "struck", [*options, "--cache_dir", str(tmp_path / "b")], KILLS, WINDOWED)
    assert (tmp_path / "struck" / "log").read_text().count("is lost after step") == KILLS
    alone, struck = (load_file(tmp_path / name / "run" / "model" / "model.safetensors") for name in ("alone", "struck"))
    assert all(torch.equal(alone[name], struck[name]) for name in alone)
