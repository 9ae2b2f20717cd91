# SPDX-License-Identifier: Apache-2.0
"""The SageMaker SDK's configuration files: what they set and the job does not is in the plan."""

import json

import pytest

from lightning_sagemaker.launch import Estimator, LaunchError
from lightning_sagemaker.launch.planning.sdk_defaults import sdk_defaults
from tests.launch.seeds import ROLE

JOB = {
    "RoleArn": "arn:aws:iam::123456789012:role/organization",
    "VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
    "OutputDataConfig": {"KmsKeyId": "alias/out"},
    "ResourceConfig": {"VolumeKmsKeyId": "alias/disk"},
    "EnableInterContainerTrafficEncryption": True,
    "Environment": {"HTTPS_PROXY": "http://proxy:3128"},
    "Tags": [{"Key": "cost", "Value": "1"}, {"Key": "team", "Value": "default"}],
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes the user's file; the administrator's is empty."""
    (tmp_path / "admin").mkdir()
    (tmp_path / "admin" / "config.yaml").touch()
    monkeypatch.setenv("SAGEMAKER_ADMIN_CONFIG_OVERRIDE", str(tmp_path / "admin"))
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", str(tmp_path / "user.yaml"))

    def write(job, name="user.yaml"):
        (tmp_path / name).write_text(json.dumps({"SchemaVersion": "1.0", "SageMaker": {"TrainingJob": job}}))

    return write


def request(**more):
    given = {"recipe": "albert-mlm", "region": "us-east-1", "instance_type": "ml.p3.16xlarge", "include_plugin": False}
    return Estimator(**{**given, **more}).request()


def test_what_the_files_set_is_in_the_request(write):
    write(JOB)
    found = request(tags={"team": "text"})
    assert found["RoleArn"] == JOB["RoleArn"]
    assert found["VpcConfig"] == JOB["VpcConfig"]
    assert found["OutputDataConfig"]["KmsKeyId"] == "alias/out"
    assert found["ResourceConfig"]["VolumeKmsKeyId"] == "alias/disk"
    assert found["EnableInterContainerTrafficEncryption"] is True
    assert found["Environment"] == JOB["Environment"]
    assert sorted((one["Key"], one["Value"]) for one in found["Tags"]) == [("cost", "1"), ("team", "text")]
    # As in SDK 2, whose rule it is: a disk that is part of the host takes no key.
    assert "VolumeKmsKeyId" not in request(instance_type="ml.g5.xlarge")["ResourceConfig"]


def test_what_the_job_sets_wins(write):
    write(JOB)
    own = {"role": ROLE, "output_kms_key": "alias/own", "subnets": ["subnet-2"], "security_group_ids": ["sg-2"]}
    found = request(**own, environment={"A": "b"}, encrypt_inter_container_traffic=False)
    assert found["RoleArn"] == ROLE
    assert found["OutputDataConfig"]["KmsKeyId"] == "alias/own"
    assert found["VpcConfig"] == {"Subnets": ["subnet-2"], "SecurityGroupIds": ["sg-2"]}
    assert found["Environment"] == {"A": "b"}
    assert not found["EnableInterContainerTrafficEncryption"]


def test_the_users_file_wins_over_the_administrators(write):
    write({"RoleArn": "arn:aws:iam::123456789012:role/admin", "VpcConfig": JOB["VpcConfig"]}, "admin/config.yaml")
    write({"RoleArn": JOB["RoleArn"]})
    found = request()
    assert (found["RoleArn"], found["VpcConfig"]) == (JOB["RoleArn"], JOB["VpcConfig"])


@pytest.mark.parametrize("text", ["[", "just words", "a: *b"])
def test_a_file_that_cannot_be_read_is_an_error(text, tmp_path, monkeypatch, write):
    (tmp_path / "user.yaml").write_text(text)
    with pytest.raises(LaunchError, match=r"user\.yaml \(SAGEMAKER_USER_CONFIG_OVERRIDE\) cannot be read: .*HINT"):
        request()
    with pytest.raises(LaunchError, match="cannot be read"):
        sdk_defaults({"SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(tmp_path / "none.yaml")})


def test_the_usual_places_may_be_empty(tmp_path):
    places = {"XDG_CONFIG_HOME": str(tmp_path / "own"), "XDG_CONFIG_DIRS": str(tmp_path / "shared")}
    assert sdk_defaults(places) == {}
    (tmp_path / "own" / "sagemaker").mkdir(parents=True)
    (tmp_path / "own" / "sagemaker" / "config.yaml").write_text("SageMaker: {TrainingJob: {RoleArn: a}}")
    assert sdk_defaults(places) == {"SageMaker": {"TrainingJob": {"RoleArn": "a"}}}
