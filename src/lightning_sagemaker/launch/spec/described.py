# SPDX-License-Identifier: Apache-2.0
"""Reconstruct the description of a job that was started earlier, also by SDK 2, from SageMaker's description."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lightning_sagemaker.launch.spec.config import JobConfig


def described_job(job: Mapping[str, Any], model_channel_name: str = "model") -> JobConfig:
    """The job's description, as far as SageMaker's answer has it.

    Args:
        job: The answer of DescribeTrainingJob.
        model_channel_name: Name of the channel with the job's initial weights.

    """
    resources, stopping = job["ResourceConfig"], job.get("StoppingCondition", {})
    sent = {name: _value(text) for name, text in job.get("HyperParameters", {}).items()}
    network, checkpoints = job.get("VpcConfig", {}), job.get("CheckpointConfig", {})
    values = {
        "role": job["RoleArn"],
        "instance_type": resources.get("InstanceType"),
        "instance_count": resources.get("InstanceCount"),
        "instance_groups": resources.get("InstanceGroups") or None,
        "instance_group": next(iter(sent.get("sagemaker_distribution_instance_groups") or ()), None),
        "volume_size": resources.get("VolumeSizeInGB"),
        "volume_kms_key": resources.get("VolumeKmsKeyId"),
        "max_run": stopping.get("MaxRuntimeInSeconds"),
        "max_wait": stopping.get("MaxWaitTimeInSeconds"),
        "use_spot_instances": job.get("EnableManagedSpotTraining"),
        "image_uri": job["AlgorithmSpecification"].get("TrainingImage"),
        "input_mode": job["AlgorithmSpecification"].get("TrainingInputMode"),
        "entry_point": sent.get("sagemaker_program"),
        "source_dir": sent.get("sagemaker_submit_directory"),
        "hyperparameters": {name: value for name, value in sent.items() if not name.startswith("sagemaker_")},
        "environment": job.get("Environment"),
        "output_path": job["OutputDataConfig"]["S3OutputPath"],
        "output_kms_key": job["OutputDataConfig"].get("KmsKeyId"),
        "checkpoint_s3_uri": checkpoints.get("S3Uri"),
        "checkpoint_local_path": checkpoints.get("LocalPath"),
        "subnets": network.get("Subnets"),
        "security_group_ids": network.get("SecurityGroupIds"),
        "model_uri": _weights(job, model_channel_name),
        "model_channel_name": model_channel_name,
        "base_job_name": job["TrainingJobName"].rpartition("-")[0] or None,
    }
    return JobConfig.from_mapping({name: value for name, value in values.items() if value not in (None, "")})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _weights(job: Mapping[str, Any], channel_name: str) -> str | None:
    for channel in job.get("InputDataConfig", []):
        if channel["ChannelName"] == channel_name and "S3DataSource" in channel["DataSource"]:
            return str(channel["DataSource"]["S3DataSource"]["S3Uri"])
    return None
