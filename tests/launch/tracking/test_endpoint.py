# SPDX-License-Identifier: Apache-2.0
"""An endpoint for the model of a job: what AWS is asked for."""

import types

import pytest

from lightning_sagemaker.launch import LaunchError
from lightning_sagemaker.launch.tracking.endpoint import create_endpoint
from lightning_sagemaker.launch.tracking.jobs import JobStatus

ROLE = "arn:aws:iam::123456789012:role/service-role/training"
VPC = {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}


class Client:
    """Keeps the arguments of each call."""

    def __init__(self):
        self.sent = {}

    def __getattr__(self, name):
        return lambda **arguments: self.sent.update({name: arguments})


def job(model="s3://bucket/out/job/output/model.tar.gz", **more):
    about = {"RoleArn": ROLE, "ModelArtifacts": {"S3ModelArtifacts": model}, "OutputDataConfig": {}, **more}
    jobs = types.SimpleNamespace(sagemaker=Client())
    return JobStatus("job", "Completed" if model else "InProgress", "", None, 0.0, model, about, jobs)


def model_of(status):
    create_endpoint(status, "name", "image", "ml.m5.xlarge", 1)
    return status.jobs.sagemaker.sent["create_model"]


def test_the_model_runs_with_the_jobs_role_and_network():
    """As in SDK 2: a server may reach no more than the training could, and a role's name is no ARN."""
    found = model_of(job(VpcConfig=VPC, EnableNetworkIsolation=True))
    assert found["ExecutionRoleArn"] == ROLE
    assert (found["VpcConfig"], found["EnableNetworkIsolation"]) == (VPC, True)
    open_one = model_of(job(EnableNetworkIsolation=False))
    assert not {"VpcConfig", "EnableNetworkIsolation"} & set(open_one)
    assert open_one["PrimaryContainer"]["ModelDataUrl"].endswith("/model.tar.gz")


def test_a_model_that_was_not_compressed_is_a_prefix():
    for place in ("s3://bucket/out/job/output/model", "s3://bucket/out/job/output/model/"):
        found = model_of(job(place, OutputDataConfig={"CompressionType": "NONE"}))["PrimaryContainer"]
        assert "ModelDataUrl" not in found
        assert found["ModelDataSource"]["S3DataSource"] == {
            "S3Uri": "s3://bucket/out/job/output/model/",
            "S3DataType": "S3Prefix",
            "CompressionType": "None",
        }


def test_without_a_model_nothing_is_created():
    status = job(model=None)
    with pytest.raises(LaunchError, match="The job job is InProgress and has no model. HINT"):
        create_endpoint(status, "name", "image", "ml.m5.xlarge", 1)
    assert not status.jobs.sagemaker.sent
