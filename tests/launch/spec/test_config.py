# SPDX-License-Identifier: Apache-2.0
"""A job as YAML and as a mapping: read as it was written, or refused."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sagemaker.launch import JobConfig, LaunchError
from lightning_sagemaker.launch.spec.distribution import parse_distribution
from lightning_sagemaker.launch.spec.inputs import TrainingInput, parse_inputs
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
