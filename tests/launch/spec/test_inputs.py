# SPDX-License-Identifier: Apache-2.0
"""Inputs as objects of the SDK: every option of theirs reaches the request."""

import inspect
from dataclasses import fields, replace

import pytest

from lightning_sagemaker.launch import FileSystemInput, LaunchError, PyTorch, TrainingInput
from lightning_sagemaker.launch import ShuffleConfig as OurShuffle
from lightning_sagemaker.launch.spec.inputs import parse_inputs
from tests.launch.conftest import has_sdk

VALUES = {
    "s3_data": "s3://bucket/labels.manifest",
    "distribution": "ShardedByS3Key",
    "compression": "Gzip",
    "content_type": "text/csv",
    "record_wrapping": "RecordIO",
    "s3_data_type": "AugmentedManifestFile",
    "instance_groups": ["gpu"],
    "input_mode": "Pipe",
    "attribute_names": ["source-ref", "label"],
    "hub_access_config": {"HubContentArn": "arn:aws:sagemaker:us-east-1:123456789012:hub-content/hub/Model/m/1.0.0"},
    "model_access_config": {"AcceptEula": True},
}


def test_the_sdks_object_says_as_much_as_ours():
    assert has_sdk()
    from sagemaker.core.inputs import ShuffleConfig as TheirShuffle
    from sagemaker.core.inputs import TrainingInput as Theirs

    theirs = parse_inputs({"train": Theirs(**VALUES, shuffle_config=TheirShuffle(7))})["train"]
    ours = parse_inputs({"train": {**VALUES, "shuffle_config": {"seed": 7}}})["train"]
    assert theirs == ours
    left = set(inspect.signature(Theirs.__init__).parameters) - {"self", "shuffle_config", *VALUES}
    assert left == {"target_attribute_name"}, "an option of the SDK that this test does not set"
    assert left <= {one.name for one in fields(TrainingInput)}


def test_a_file_address_is_a_path_in_every_form_of_an_input(tmp_path):
    address = f"file://{tmp_path}"
    for one in (address, TrainingInput(address), {"s3_data": address}):
        (found,) = parse_inputs(one).values()
        assert (found.s3_data, found.is_local) == (str(tmp_path), True)


def test_channels_of_sdk_3_are_read():
    assert has_sdk()
    from sagemaker.core.shapes import Channel, DataSource, FileSystemDataSource, S3DataSource, ShuffleConfig
    from sagemaker.core.training.configs import InputData

    place = {"s3_data_type": "S3Prefix", "s3_uri": "s3://bucket/a", "s3_data_distribution_type": "ShardedByS3Key"}
    disk = {"file_system_id": "fs-0123456789abcdef0", "file_system_type": "EFS", "directory_path": "/a"}
    shards = S3DataSource(**place, instance_group_names=["gpu"])
    efs = FileSystemDataSource(**disk, file_system_access_mode="rw")
    more = {"content_type": "text/csv", "input_mode": "FastFile", "shuffle_config": ShuffleConfig(seed=7)}
    given = [
        InputData(channel_name="uri", data_source="s3://bucket/a", content_type="text/csv"),
        InputData(channel_name="local", data_source="."),
        InputData(channel_name="shards", data_source=shards),
        InputData(channel_name="efs", data_source=efs),
        Channel(channel_name="channel", data_source=DataSource(s3_data_source=shards), **more),
        Channel(channel_name="disk", data_source=DataSource(file_system_data_source=efs)),
    ]
    shard = TrainingInput("s3://bucket/a", "ShardedByS3Key", instance_groups=["gpu"])
    found = {
        "uri": TrainingInput("s3://bucket/a", content_type="text/csv"),
        "local": TrainingInput("."),
        "shards": shard,
        "efs": FileSystemInput(**disk, file_system_access_mode="rw"),
        "channel": replace(shard, **{**more, "shuffle_config": OurShuffle(7)}),
        "disk": FileSystemInput(**disk, file_system_access_mode="rw"),
    }
    assert parse_inputs(given) == parse_inputs({one.channel_name: one for one in given}) == found
    for wrong in ([given[0], given[0]], [InputData(channel_name="nothing")]):
        with pytest.raises(LaunchError, match="HINT"):
            parse_inputs(wrong)


def test_the_usual_distribution_may_be_none_as_in_sdk_2():
    for one in (TrainingInput("s3://bucket/a", distribution=None), {"s3_data": "s3://bucket/a", "distribution": None}):
        assert parse_inputs({"train": one})["train"].distribution == "FullyReplicated"


def test_old_buckets_have_capitals_and_underscores():
    (found,) = parse_inputs("s3://My_Bucket/data").values()
    assert found.s3_data == "s3://My_Bucket/data"
    with pytest.raises(LaunchError, match="HINT: write s3://bucket/prefix"):
        parse_inputs("s3://my bucket/data")


def test_the_weights_do_not_take_the_place_of_a_channel():
    """The job would train without the data of that channel."""
    job = PyTorch("train.py", model_uri="s3://bucket/weights/")
    with pytest.raises(LaunchError, match="Channel 'model' is among the inputs, and model_uri has it too. HINT"):
        _ = job.config.changed(inputs={"model": "s3://bucket/models/"}).channels
    other = PyTorch("train.py", model_uri="s3://bucket/weights/", model_channel_name="weights")
    assert set(other.config.changed(inputs={"model": "s3://bucket/models/"}).channels) == {"model", "weights"}
