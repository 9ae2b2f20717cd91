# SPDX-License-Identifier: Apache-2.0
"""Text prepared straight to S3, and trained on from there, by the recipe: against a server with S3's API."""

import json
import re
from pathlib import Path

import boto3
import numpy as np
import pytest
import torch
from botocore.config import Config

from lightning_sagemaker.data import block_index
from lightning_sagemaker.data.block_index import RUN
from lightning_sagemaker.data.damage import DataReadError
from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.launch.planning import streaming
from lightning_sagemaker.launch.planning.plan import make_plan
from lightning_sagemaker.launch.planning.streaming import describe_streaming
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.recipes._common.data import remote
from lightning_sagemaker.recipes._common.data.verify import verify
from lightning_sagemaker.recipes.albert_mlm import prepare_text
from lightning_sagemaker.recipes.albert_mlm.articles import TextSourceError
from lightning_sagemaker.recipes.albert_mlm.data import MLMDataModule
from lightning_sagemaker.recipes.albert_mlm.prepare_text import main
from lightning_sagemaker.recipes.albert_mlm.text import find_text, prepared_folder
from tests.chaos.s3_server import Servers
from tests.conftest import fork_ranks
from tests.recipes import streamed_worker

ADDRESS = "s3://corpus/text/32"
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def made(tmp_path_factory, text_file):
    """The server, the folder of the same shards on disk, and the environment of a client."""
    folder, servers = tmp_path_factory.mktemp("streamed"), Servers()
    environment = {**KEYS, "AWS_ENDPOINT_URL": servers.direct, "XDG_CACHE_HOME": str(folder / "home")}
    client = boto3.client(
        "s3",
        endpoint_url=servers.direct,
        config=Config(s3={"addressing_style": "path"}),
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    client.create_bucket(Bucket="corpus")
    options = ["--vocab-size", "300", "--sequence-length", "32", "--test-fraction", "0.1", "--workers", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_index, "BLOCK_BYTES", 1 << 11)  # 32 rows
        for name, value in environment.items():
            patch.setenv(name, value)
        assert main([str(text_file), str(folder / "shards"), *options]) == 0
        assert main([str(text_file), ADDRESS, *options]) == 0
    yield servers, folder, environment, client, options
    servers.close()


@pytest.fixture
def client(made, monkeypatch):
    for name, value in made[2].items():
        monkeypatch.setenv(name, value)
    return made[3]


def data_of(text, cache, **options):
    data = MLMDataModule(
        text, cache_dir=str(cache), **{"sequence_length": 32, "global_batch_size": 8, "num_workers": 0} | options
    )
    data.prepare_data()
    data.setup("fit")
    return data


def rows_of(loader):
    return torch.cat([batch["index"] for batch in loader])


def test_s3_has_what_the_folder_has_and_nothing_is_left_here(made, client):
    objects = {one["Key"] for one in client.list_objects_v2(Bucket="corpus", Prefix="text/")["Contents"]}
    files = {
        path.relative_to(made[1] / "shards").as_posix() for path in (made[1] / "shards").rglob("*") if path.is_file()
    }
    assert objects == {f"text/32/{name}" for name in files}
    assert not list((made[1] / "home").rglob("*.npy"))


def test_prepared_again_it_is_found_and_other_text_is_refused(made, client, text_file, capsys):
    assert main([str(text_file), ADDRESS, *made[4]]) == 0
    assert "found 120 articles" in capsys.readouterr().out
    with pytest.raises(CommandError, match="other text or settings"):
        main([str(text_file), ADDRESS, *made[4], "--max-documents", "50"])


def test_an_interrupted_upload_goes_on(made, client, text_file, tmp_path, monkeypatch, capsys):
    address, staging = "s3://corpus/again", ["--staging", str(tmp_path / "staging")]
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "mine").touch()
    send = prepare_text.RemoteFolder.send

    def broken(self, folder, name, entry):
        if name == "val-00000.npy":
            raise DataReadError("the network is gone. HINT: try again.")
        return send(self, folder, name, entry)

    monkeypatch.setattr(prepare_text.RemoteFolder, "send", broken)
    with pytest.raises(CommandError, match=r"the network is gone\. HINT"):
        main([str(text_file), address, *made[4], *staging])
    keys = {one["Key"] for one in client.list_objects_v2(Bucket="corpus", Prefix="again/")["Contents"]}
    assert "again/train-00000.npy" in keys
    assert "again/manifest.json" not in keys
    with pytest.raises(DataReadError, match="holds no manifest.json.*HINT"):
        data_of(address, tmp_path / "cache")
    before = client.head_object(Bucket="corpus", Key="again/train-00000.npy")["LastModified"]
    monkeypatch.setattr(prepare_text.RemoteFolder, "send", send)
    assert main([str(text_file), address, *made[4], *staging]) == 0
    assert client.head_object(Bucket="corpus", Key="again/train-00000.npy")["LastModified"] == before
    assert [path.name for path in (tmp_path / "staging").iterdir()] == ["mine"]  # what was there stays
    data_of(address, tmp_path / "cache")


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_from_s3_are_those_of_the_shards(made, client, tmp_path, workers):
    local, streamed = (
        data_of(str(made[1] / "shards"), tmp_path / "a"),
        data_of(ADDRESS, tmp_path / "b", num_workers=workers),
    )
    assert streamed.sources()["text"] == ADDRESS
    assert streamed.vocab_size == local.vocab_size
    train = streamed.train_dataloader()
    given = {
        int(index): tokens for batch in train for index, tokens in zip(batch["index"], batch["input_ids"], strict=True)
    }
    assert len(given) == len(train) * 8 == len(local.train_dataloader()) * 8
    rows = local.train_dataloader().dataset.shards.rows(np.array(list(given)))
    for tokens, row in zip(given.values(), rows, strict=True):
        assert (tokens.numpy() == row).mean() > 0.6  # the others are masked
    for one, other in zip(local.val_dataloader(), streamed.val_dataloader(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_was_fetched_is_counted_and_priced(made, client, tmp_path, caplog):
    data = data_of(ADDRESS, tmp_path)
    before = sum(one["Size"] for one in client.list_objects_v2(Bucket="corpus", Prefix="text/32/train-")["Contents"])
    list(data.train_dataloader())
    requests = -(-len(data.train_dataloader().dataset) // (32 * RUN))
    caplog.set_level("INFO")
    data.teardown("fit")
    said = re.search(rf"{ADDRESS}: this host made {requests} requests for (.*) GB, some \$(.*) at", caplog.text)
    assert float(said[1]) * 1e9 == pytest.approx(before, rel=0.05)
    assert float(said[2]) == pytest.approx(requests * 0.0004 / 1000, rel=0.05)
    again = data_of(ADDRESS, tmp_path)
    list(again.train_dataloader())
    again.teardown("fit")
    assert "this host made 0 requests" in caplog.text  # all was in its store


def test_the_plan_of_a_job_has_the_requests_of_an_epoch(made, client, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(streaming, "_SECONDS", 120.0)  # on a busy machine, too
    config = JobConfig(recipe="albert-mlm", instance_type="ml.g5.xlarge", hyperparameters={"text": f"{ADDRESS}/"})
    [(word, line)] = describe_streaming(make_plan(config), asks_s3=True)
    data = data_of(ADDRESS, tmp_path)
    caplog.set_level("INFO")
    list(data.train_dataloader())
    data.teardown("fit")
    made_by_run = re.search("host made (.*) requests for (.*) GB", caplog.text)
    assert word == "streams"
    planned = re.search(rf"{ADDRESS}: (.*) requests for (.*) GB in each epoch, some \$(.*) at", line)
    assert int(planned[1]) == int(made_by_run[1])
    assert float(planned[2]) == pytest.approx(float(made_by_run[2]), rel=0.05)
    assert float(planned[3]) == pytest.approx(int(planned[1]) * 0.0004 / 1000, rel=0.05)


def test_a_plan_says_what_any_text_costs_where_it_cannot_be_counted(made, client):
    config = JobConfig(recipe="albert-mlm", instance_type="ml.g5.xlarge", hyperparameters={"text": "s3://none/there"})
    said = "s3://none/there: requests of up to 4 MiB, about $0.0001 per GB of an epoch"
    assert describe_streaming(make_plan(config), asks_s3=False) == [("streams", said)]
    [(word, line)] = describe_streaming(make_plan(config), asks_s3=True)
    assert word == "streams"
    assert line.startswith(f"{said}; they could not be counted: ")
    assert "none" in line.partition("counted: ")[2]
    assert describe_streaming(make_plan(config.changed(hyperparameters={"text": "auto"})), asks_s3=True) == []


def test_a_changed_upload_is_read_anew(made, client, tmp_path):
    data_of(ADDRESS, tmp_path)
    manifest = json.loads(client.get_object(Bucket="corpus", Key="text/32/manifest.json")["Body"].read())
    client.put_object(Bucket="corpus", Key="changed/manifest.json", Body=json.dumps(manifest | {"digest": "x"}))
    with pytest.raises(DataReadError, match="s3://corpus/changed/.* is missing"):
        data_of("s3://corpus/changed", tmp_path)


def test_damaged_blocks_in_s3_end_the_run_or_are_replaced(made, client, tmp_path, caplog):
    for one in client.list_objects_v2(Bucket="corpus", Prefix="text/32/")["Contents"]:
        name = one["Key"].removeprefix("text/")
        client.copy_object(Bucket="corpus", Key=f"broken/{name}", CopySource={"Bucket": "corpus", "Key": one["Key"]})
    key = "broken/32/train-00000.npy"
    content = bytearray(client.get_object(Bucket="corpus", Key=key)["Body"].read())
    content[200] ^= 1  # in the first of several blocks
    client.put_object(Bucket="corpus", Key=key, Body=bytes(content))
    with pytest.raises(
        DataReadError, match=r"train-00000\.npy in s3://corpus/broken/32: block 0 was written with crc32"
    ):
        list(data_of("s3://corpus/broken/32", tmp_path / "a").train_dataloader())

    data = data_of("s3://corpus/broken/32", tmp_path / "b", on_damage="skip")
    shards = data.train_dataloader().dataset.shards
    rows, found = np.load(made[1] / "shards" / "train-00000.npy"), shards.rows(np.arange(len(shards)))
    np.testing.assert_array_equal(found[32:], rows[32:])
    assert all(row in rows[32:].tolist() for row in found[:32].tolist())
    assert caplog.text.count("training on another block instead (1 blocks so far in this process)") == 1
    assert len(rows_of(data.train_dataloader())) == len(shards) // 8 * 8


def test_what_is_in_s3_is_verified(made, client, monkeypatch, capsys):
    monkeypatch.setattr(remote, "_PART", 1000)
    assert main(["", ADDRESS, "--verify"]) == 0
    assert f"files of {ADDRESS} are unchanged" in capsys.readouterr().out
    for one in client.list_objects_v2(Bucket="corpus", Prefix="text/32/")["Contents"]:
        name = one["Key"].removeprefix("text/32/")
        body = bytearray(client.get_object(Bucket="corpus", Key=one["Key"])["Body"].read())
        if name == "test-00000.npy":
            continue
        if name == "train-00000.npy":
            body[-1] ^= 1
        if name == "val-00000.npy":
            del body[-1]
        client.put_object(Bucket="corpus", Key=f"other/{name}", Body=bytes(body))
    assert verify("s3://corpus/other") == 1
    said = capsys.readouterr()
    assert "WRONG   test-00000.npy is missing" in said.out
    assert "WRONG   train-00000.npy was written with crc32" in said.out
    assert "WRONG   val-00000.npy has" in said.out
    assert said.out.count("right ") == len(json.loads((made[1] / "shards" / "manifest.json").read_text())["others"])
    assert "error: test-00000.npy, train-00000.npy, val-00000.npy in s3://corpus/other changed" in said.err
    with pytest.raises(CommandError, match=r"s3://corpus/nothing was given, but holds no manifest\.json\. HINT"):
        verify("s3://corpus/nothing")


def test_text_itself_is_not_read_from_s3():
    with pytest.raises(TextSourceError, match="data.validation='s3://corpus/raw' was set.*HINT"):
        find_text("s3://corpus/raw", {}, "data.validation")


def test_a_channel_of_shards_is_recognized(made, tmp_path):
    assert prepared_folder("auto", {"train": made[1] / "shards"}) == made[1] / "shards"
    assert prepared_folder("auto", {}) is None
    (tmp_path / "train-00000.npy").touch()
    with pytest.raises(TextSourceError, match="ShardedByS3Key.*FullyReplicated"):
        prepared_folder("auto", {"train": tmp_path})


def test_two_ranks_from_s3_stopped_and_started_elsewhere_equal_a_run_left_alone(made, tmp_path):
    fork_ranks(Path(streamed_worker.__file__), tmp_path, ADDRESS, processes=2, PYTHONPATH=".", **made[2])
    assert [(tmp_path / f"codes-{rank}").read_text() for rank in range(2)] == ["[0, 143, 0]"] * 2
    calm, stopped = (
        torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=True) for name in ("calm", "stopped")
    )
    assert calm["global_step"] == stopped["global_step"] == streamed_worker.STEPS
    assert all(torch.equal(value, stopped["state_dict"][name]) for name, value in calm["state_dict"].items())
    states = [one["optimizer_states"][0]["state"] for one in (calm, stopped)]
    for parameter, state in states[0].items():
        assert all(
            torch.equal(torch.as_tensor(value), torch.as_tensor(states[1][parameter][name]))
            for name, value in state.items()
        )
