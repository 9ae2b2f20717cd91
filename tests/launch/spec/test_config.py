# SPDX-License-Identifier: Apache-2.0
"""A job as YAML and as a mapping: read as it was written, or refused."""

import contextlib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sagemaker.launch import JobConfig, LaunchError
from lightning_sagemaker.launch.spec.distribution import parse_distribution
from lightning_sagemaker.launch.spec.inputs import ShuffleConfig, TrainingInput, parse_inputs
from tests.launch.jobs import P4D, partitions


def read_or_refused(read, value):
    """Any error but our own, with its hint, is a failure."""
    with contextlib.suppress(Refused):
        try:
            read(value)
        except LaunchError as error:
            raise (Refused if "HINT: " in str(error) else AssertionError)(str(error)) from error


class Refused(Exception):
    pass


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=12),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["smdistributed", "dataparallel", "modelparallel", "mpi", "enabled", "parameters", "x"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=300, deadline=None)
def test_any_distribution_and_any_inputs_are_read_or_refused(value):
    read_or_refused(parse_distribution, value)
    read_or_refused(parse_inputs, value)


@given(
    st.dictionaries(st.sampled_from([*JobConfig.__dataclass_fields__, "other"]), st.none() | st.integers() | st.text())
)
@settings(max_examples=200, deadline=None)
def test_any_job_file_is_read_or_refused(values):
    read_or_refused(JobConfig.from_mapping, values)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes_as_a_job_file(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("job") / "job.yaml"
    path.write_bytes(content)
    read_or_refused(JobConfig.from_yaml, path)


def test_a_job_as_yaml_comes_back(tmp_path):
    config = JobConfig.from_mapping(
        {
            **P4D,
            "distribution": partitions(2),
            "tags": [{"Key": "a", "Value": "b"}],
            "inputs": {"train": "s3://bucket/x"},
        }
    )
    path = tmp_path / "job.yaml"
    path.write_text(config.to_yaml())
    assert JobConfig.from_yaml(path) == config
    config = config.changed(inputs={"train": TrainingInput("s3://bucket/x", input_mode="FastFile")})
    path.write_text(config.to_yaml())
    assert JobConfig.from_yaml(path).channels == config.channels


def test_an_input_with_every_option_is_written_and_read_again():
    """A list, a shuffle's seed and the API's dictionaries are no strings; a file has no classes."""
    given = TrainingInput(
        "s3://bucket/data",
        distribution="ShardedByS3Key",
        instance_groups=["workers"],
        attribute_names=["text", "label"],
        shuffle_config=ShuffleConfig(7),
        hub_access_config={"HubContentArn": "arn:aws:sagemaker:us-east-1:aws:hub-content/a/b/c"},
        model_access_config={"AcceptEula": True},
    )
    written = yaml.safe_load(JobConfig(inputs={"train": given}).to_yaml())["inputs"]
    assert parse_inputs(written) == {"train": given}


@pytest.mark.parametrize(
    ("option", "value", "form"),
    [
        ("instance_groups", "workers", "a list of names"),
        ("attribute_names", [1], "a list of names"),
        ("shuffle_config", {"seed": "7"}, "a dictionary with an integer as seed"),
        ("shuffle_config", 7, "a dictionary with an integer as seed"),
        ("model_access_config", True, "a dictionary as in the API"),
        ("content_type", ["text/csv"], "a string"),
    ],
)
def test_an_option_of_an_input_in_another_form_is_one_sentence(option, value, form):
    with pytest.raises(LaunchError, match=f"has {option}=.* HINT: it must be {form}"):
        parse_inputs({"train": {"s3_data": "s3://bucket/data", option: value}})


def test_a_hyperparameter_may_be_named_by_a_number():
    assert JobConfig.from_mapping({"hyperparameters": {1: "a"}}).hyperparameters == {"1": "a"}
