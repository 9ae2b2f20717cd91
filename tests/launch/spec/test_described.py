# SPDX-License-Identifier: Apache-2.0
"""A job that SDK 2 started, attached to: what a further ``fit`` would send is that job, its distribution included."""

import json

import pytest

from lightning_sagemaker.launch.spec.described import described_job

JOB = {
    "TrainingJobName": "albert-2026-01-02-03-04-05-678",
    "RoleArn": "arn:aws:iam::123456789012:role/training",
    "AlgorithmSpecification": {
        "TrainingImage": "own",
        "TrainingInputMode": "File",
        "MetricDefinitions": [{"Name": "loss", "Regex": "loss=(.*)"}],
    },
    "ResourceConfig": {
        "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30, "KeepAlivePeriodInSeconds": 600,
    },
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out", "CompressionType": "NONE", "KmsKeyId": ""},
    "EnableInterContainerTrafficEncryption": True,
    "EnableNetworkIsolation": True,
    "RetryStrategy": {"MaximumRetryAttempts": 3},
}  # fmt: skip
DATAPARALLEL = {"sagemaker_distributed_dataparallel_enabled": True}
PARAMETERS = {"partitions": 2, "microbatches": 4, "ddp": True}


@pytest.mark.parametrize(
    ("sent", "flags", "parameters"),
    [
        ({}, {}, {}),
        ({**DATAPARALLEL, "sagemaker_distributed_dataparallel_custom_mpi_options": "-x A=1"}, None, {}),
        ({"sagemaker_torch_distributed_enabled": True}, None, {}),
        ({"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 8}, None, {}),
        ({"sagemaker_mpi_enabled": True, "sagemaker_mpi_custom_mpi_options": "--NCCL_DEBUG INFO"}, None, {}),
        (
            {"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 8, "mp_parameters": PARAMETERS},
            {"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 8},
            PARAMETERS,
        ),
    ],
)
def test_the_distribution_is_that_of_the_job(sent, flags, parameters):
    values = {"epochs": 3, "sagemaker_program": "train.py", **sent}
    job = described_job({**JOB, "HyperParameters": {name: json.dumps(value) for name, value in values.items()}})
    found = {name: value for name, value in job.distributed.flags.items() if value is not False}
    assert found == (sent if flags is None else flags)
    assert dict(job.distributed.parameters) == parameters
    assert dict(job.hyperparameters) == {"epochs": 3}


def test_no_part_of_the_job_is_lost():
    job = described_job(JOB)
    assert (job.encrypt_inter_container_traffic, job.enable_network_isolation) == (True, True)
    assert (job.keep_alive_period_in_seconds, job.max_retry_attempts) == (600, 3)
    assert (job.disable_output_compression, job.base_job_name) == (True, "albert")
    assert [dict(one) for one in job.metric_definitions] == [{"Name": "loss", "Regex": "loss=(.*)"}]
