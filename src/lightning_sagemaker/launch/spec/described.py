# SPDX-License-Identifier: Apache-2.0
"""Reconstruct the description of a job that was started earlier, also by SDK 2, from SageMaker's description."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lightning_sagemaker.launch.spec.carried import Json, original_values
from lightning_sagemaker.launch.spec.config import JobConfig

_TIME = re.compile(r"(?:-[0-9a-f]{4})?-(?:\d{4}(?:-\d\d){5}-\d{3}|\d{6}-\d{4}|\d{14})$")
"""What SDK 2 and this package append to the base of a job's name."""


def described_job(job: Json, model_channel_name: str = "model", config: Json | None = None) -> JobConfig:
    """The job's description, as far as SageMaker's answer has it.

    Args:
        job: The answer of DescribeTrainingJob.
        model_channel_name: Name of the channel with the job's initial weights.
        config: ``distributed.json`` that was sent with the job; None for a job of SDK 2.

    """
    resources, stopping = job["ResourceConfig"], job.get("StoppingCondition", {})
    config = config or {}
    sent = original_values(config, {name: _value(text) for name, text in job.get("HyperParameters", {}).items()})
    network, checkpoints = job.get("VpcConfig", {}), job.get("CheckpointConfig", {})
    algorithm, own = job["AlgorithmSpecification"], ("sagemaker_", "mp_parameters")
    values = {
        "role": job["RoleArn"],
        "instance_type": resources.get("InstanceType"),
        "instance_count": resources.get("InstanceCount"),
        "instance_groups": resources.get("InstanceGroups") or None,
        "instance_group": next(
            iter(sent.get("sagemaker_distribution_instance_groups") or config.get("groups") or ()), None
        ),
        "volume_size": resources.get("VolumeSizeInGB"),
        "volume_kms_key": resources.get("VolumeKmsKeyId"),
        "max_run": stopping.get("MaxRuntimeInSeconds"),
        "max_wait": stopping.get("MaxWaitTimeInSeconds"),
        "use_spot_instances": job.get("EnableManagedSpotTraining"),
        "keep_alive_period_in_seconds": resources.get("KeepAlivePeriodInSeconds"),
        "max_retry_attempts": job.get("RetryStrategy", {}).get("MaximumRetryAttempts"),
        "image_uri": algorithm.get("TrainingImage"),
        "input_mode": algorithm.get("TrainingInputMode"),
        "metric_definitions": algorithm.get("MetricDefinitions"),
        "distribution": _distribution({**sent, **_flags(config)}),
        "recovery": config.get("recovery"),
        "entry_point": sent.get("sagemaker_program"),
        "source_dir": sent.get("sagemaker_submit_directory"),
        "hyperparameters": {name: value for name, value in sent.items() if not name.startswith(own)},
        "environment": job.get("Environment"),
        "output_path": job["OutputDataConfig"]["S3OutputPath"],
        "output_kms_key": job["OutputDataConfig"].get("KmsKeyId"),
        "disable_output_compression": job["OutputDataConfig"].get("CompressionType") == "NONE",
        "checkpoint_s3_uri": checkpoints.get("S3Uri"),
        "checkpoint_local_path": checkpoints.get("LocalPath"),
        "subnets": network.get("Subnets"),
        "security_group_ids": network.get("SecurityGroupIds"),
        "enable_network_isolation": job.get("EnableNetworkIsolation"),
        "encrypt_inter_container_traffic": job.get("EnableInterContainerTrafficEncryption"),
        "model_uri": _weights(job, model_channel_name),
        "model_channel_name": model_channel_name,
        "base_job_name": _TIME.sub("", job["TrainingJobName"]),
    }
    return JobConfig.from_mapping({name: value for name, value in values.items() if value not in (None, "")})


def _flags(config: Json) -> dict[str, object]:
    """The distribution of a job that this package started, in the hyperparameters in which SDK 2 would have sent it."""
    parameters = config.get("smp")
    return {**(config.get("flags") or {}), **({"mp_parameters": parameters} if parameters else {})}


def _distribution(sent: Mapping[str, object]) -> dict[str, object] | None:
    """The distribution of a job in SDK 2's words, from the hyperparameters in which SDK 2 sends it."""

    def options(kind: str) -> dict[str, object]:
        name = "custom_mpi_options"
        return {"enabled": True, name: sent.get(f"sagemaker_{kind}_{name}", "")}

    found: dict[str, object] = {}
    if sent.get("sagemaker_mpi_enabled"):
        found["mpi"] = {**options("mpi"), "processes_per_host": sent.get("sagemaker_mpi_num_of_processes_per_host")}
    if sent.get("sagemaker_torch_distributed_enabled"):
        count = sent.get("sagemaker_mpi_num_of_processes_per_host")
        found["torch_distributed"] = {"enabled": True, **({"processes_per_host": count} if count else {})}
    if sent.get("sagemaker_pytorch_ddp_enabled"):
        found["pytorchddp"] = {"enabled": True}
    if sent.get("sagemaker_distributed_dataparallel_enabled"):
        found["smdistributed"] = {"dataparallel": options("distributed_dataparallel")}
    if "mp_parameters" in sent:
        found["smdistributed"] = {"modelparallel": {"enabled": True, "parameters": sent["mp_parameters"]}}
    return found or None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _weights(job: Json, channel_name: str) -> str | None:
    for channel in job.get("InputDataConfig", []):
        if channel["ChannelName"] == channel_name and "S3DataSource" in channel["DataSource"]:
            return str(channel["DataSource"]["S3DataSource"]["S3Uri"])
    return None
