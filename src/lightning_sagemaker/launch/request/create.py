# SPDX-License-Identifier: Apache-2.0
"""Build the CreateTrainingJob request from a job's plan, without I/O.

The request equals the one that the SageMaker SDK builds for the same job; it is built here as well so that it can be shown
without the SDK, credentials or network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lightning_sagemaker.job.intent import SDK_CHANNELS
from lightning_sagemaker.job.job import DEFAULT_ROOT, OUTPUT
from lightning_sagemaker.launch.planning.job_plan import JobPlan
from lightning_sagemaker.launch.request.debugger import debugger_parts
from lightning_sagemaker.launch.spec.carried import carried_config, carried_values, channel_names
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.spec.inputs import FileSystemInput, Input, TrainingInput

DRIVER = "lightning_driver.py"

_DRIVERS = f"{DEFAULT_ROOT}/input/data/sm_drivers"

START_COMMAND = f"exec $SM_PYTHON_CMD {_DRIVERS}/distributed_drivers/{DRIVER}"
"""``exec``: the driver becomes the container's first process, to which SageMaker sends SIGTERM."""

_CONTAINER_ARGUMENTS = ["-c", f"chmod +x {_DRIVERS}/sm_train.sh && {_DRIVERS}/sm_train.sh"]

ACCOUNT = "111122223333"
"""Placeholder for the account ID in a dry run without credentials, as in AWS's documentation."""


def default_bucket(region: str, account: str = ACCOUNT) -> str:
    """Name of the bucket that the SageMaker SDK uses by default."""
    return f"sagemaker-{region}-{account}"


def create_request(plan: JobPlan, job_name: str, bucket: str) -> dict[str, Any]:
    """The CreateTrainingJob request of a job.

    Args:
        plan: The job.
        job_name: Name of the job, unique in the account and region.
        bucket: Bucket to which source and local inputs are uploaded.

    """
    plan = plan.with_bucket(bucket)
    config = plan.config
    uploads = f"s3://{bucket}/{plan.base_name}/{job_name}/input"
    places = {name: f"{uploads}/{name}" for name in (*channel_names(plan.channels).values(), *SDK_CHANNELS)}
    places["code"] = code_place(plan, job_name) or f"{uploads}/code/{plan.bundle.name}"
    request: dict[str, object] = {
        "TrainingJobName": job_name,
        "HyperParameters": carried_values(plan.hyperparameters),
        "AlgorithmSpecification": {
            "TrainingImage": plan.image.uri,
            "TrainingInputMode": config.input_mode,
            "ContainerEntrypoint": ["/bin/bash"],
            "ContainerArguments": _CONTAINER_ARGUMENTS,
            "MetricDefinitions": [dict(one) for one in plan.metric_definitions],
            "TrainingImageConfig": image_config(config),
            "EnableSageMakerMetricsTimeSeries": config.enable_sagemaker_metrics,
        },
        "RoleArn": role_arn(config.role),
        "InputDataConfig": input_data_config(plan, places),
        "OutputDataConfig": {
            "S3OutputPath": config.output_path,
            "CompressionType": compression(config),
            "KmsKeyId": config.output_kms_key,
        },
        "ResourceConfig": {
            **_hosts(config),
            "VolumeSizeInGB": config.volume_size,
            "VolumeKmsKeyId": config.volume_kms_key,
            "KeepAlivePeriodInSeconds": config.keep_alive_period_in_seconds or None,
            "TrainingPlanArn": config.training_plan,
            "InstancePlacementConfig": config.instance_placement_config,
        },
        "VpcConfig": (
            {"SecurityGroupIds": list(config.security_group_ids), "Subnets": list(config.subnets)}
            if config.subnets
            else None
        ),
        "StoppingCondition": {"MaxRuntimeInSeconds": config.max_run, "MaxWaitTimeInSeconds": plan.max_wait},
        "Tags": tags_of(config),
        "EnableNetworkIsolation": config.enable_network_isolation,
        "EnableInterContainerTrafficEncryption": config.encrypt_inter_container_traffic,
        "EnableManagedSpotTraining": config.use_spot_instances or None,
        "CheckpointConfig": (
            {"S3Uri": plan.checkpoint_uri, "LocalPath": config.checkpoint_local_path} if plan.checkpoint_uri else None
        ),
        "TensorBoardOutputConfig": (
            {"LocalPath": tensorboard_folder(config), "S3OutputPath": config.tensorboard_output_path}
            if config.tensorboard_output_path
            else None
        ),
        "Environment": dict(plan.environment),
        **extras(config),
        **debugger_parts(plan, job_name),
        "RetryStrategy": (
            {"MaximumRetryAttempts": config.max_retry_attempts} if config.max_retry_attempts is not None else None
        ),
    }
    return {"HyperParameters": {}, **_without_nothing(request)}  # the SDK sends this key even if it is empty


def tensorboard_folder(config: JobConfig) -> str:
    """Folder that SageMaker copies to ``tensorboard_output_path``; by default where recipes write, or SageMaker's own."""
    usual = f"{DEFAULT_ROOT}/{OUTPUT if config.recipe else 'output'}/tensorboard"
    return config.tensorboard_local_path or usual


def driver_config(plan: JobPlan) -> dict[str, object]:
    """Content of ``distributed.json``: the distribution, and how to decode what the SDK's container cannot pass on."""
    return {**plan.config.distributed.to_json(), **carried_config(plan.hyperparameters, plan.channels)}


def role_arn(role: str | None) -> str | None:
    """The role's ARN; a name is completed with the placeholder account. None without a role."""
    return role if role is None or "/" in role else f"arn:aws:iam::{ACCOUNT}:role/{role}"


def code_place(plan: JobPlan, job_name: str) -> str | None:
    """S3 URI of the source below ``code_location``; None if the SDK chooses it."""
    place = plan.config.code_location
    return None if place is None else f"{place.rstrip('/')}/{job_name}/source/{plan.bundle.name}"


def image_config(config: JobConfig) -> dict[str, object] | None:
    """``TrainingImageConfig`` for an image in a private registry; None for any other."""
    if config.training_repository_access_mode is None:
        return None
    arn = config.training_repository_credentials_provider_arn
    login = {"TrainingRepositoryCredentialsProviderArn": arn} if arn else None
    return {
        "TrainingRepositoryAccessMode": config.training_repository_access_mode,
        "TrainingRepositoryAuthConfig": login,
    }


def tags_of(config: JobConfig) -> list[dict[str, str]]:
    """``Tags`` of the request."""
    return [{"Key": name, "Value": value} for name, value in config.tags.items()]


def compression(config: JobConfig) -> str:
    """``CompressionType`` of the model artifact."""
    return "NONE" if config.disable_output_compression else "GZIP"


def extras(config: JobConfig) -> dict[str, object]:
    """Parts of a request that the SDK has no arguments for, or leaves out if they are False."""
    switches = {
        "InfraCheckConfig": ("EnableInfraCheck", config.enable_infra_check),
        "RemoteDebugConfig": ("EnableRemoteDebug", config.enable_remote_debug),
        "SessionChainingConfig": ("EnableSessionTagChaining", config.enable_session_tag_chaining),
    }
    found: dict[str, object] = {part: {name: value} for part, (name, value) in switches.items() if value is not None}
    if config.experiment_config is not None:
        found["ExperimentConfig"] = dict(config.experiment_config)
    return found


def _hosts(config: JobConfig) -> dict[str, object]:
    if not config.groups:
        return {"InstanceType": config.instance_type, "InstanceCount": config.instance_count}
    groups = [
        {
            "InstanceGroupName": one.instance_group_name,
            "InstanceType": one.instance_type,
            "InstanceCount": one.instance_count,
        }
        for one in config.groups
    ]
    return {"InstanceGroups": groups}


def _groups(source: Input) -> list[str]:
    return [] if isinstance(source, FileSystemInput) else list(source.instance_groups or ())


def input_data_config(plan: JobPlan, places: Mapping[str, str]) -> list[dict[str, object]]:
    """``InputDataConfig`` of the request.

    Args:
        plan: The job.
        places: Name of a channel as sent -> S3 URI of what was uploaded for it: local folders, source and drivers.

    """
    names = channel_names(plan.channels)
    channels = [_channel(names[name], source, places, plan.config) for name, source in plan.channels.items()]
    is_for_groups = any(_groups(one) for one in plan.channels.values())
    groups = [one.instance_group_name for one in plan.config.groups] if is_for_groups else None
    own = [TrainingInput(places[name], instance_groups=groups) for name in SDK_CHANNELS]
    return [*channels, *map(_s3_channel, SDK_CHANNELS, own)]


def _channel(name: str, source: Input, places: Mapping[str, str], config: JobConfig) -> dict[str, object]:
    if isinstance(source, FileSystemInput):
        where = {
            "FileSystemId": source.file_system_id,
            "FileSystemAccessMode": source.file_system_access_mode,
            "FileSystemType": source.file_system_type,
            "DirectoryPath": source.directory_path,
        }
        channel = {"ChannelName": name, "DataSource": {"FileSystemDataSource": where}, "InputMode": "File"}
        return _without_nothing({**channel, "ContentType": source.content_type})
    if source.is_local:
        return _s3_channel(name, replace(source, s3_data=places[name]))
    return _s3_channel(name, replace(source, input_mode=source.input_mode or config.input_mode))


def _s3_channel(name: str, source: TrainingInput) -> dict[str, object]:
    where = {
        "S3DataType": source.s3_data_type,
        "S3Uri": source.s3_data,
        "S3DataDistributionType": source.distribution,
        "AttributeNames": list(source.attribute_names or ()),
        "InstanceGroupNames": list(source.instance_groups or ()),
        "HubAccessConfig": source.hub_access_config,
        "ModelAccessConfig": source.model_access_config,
    }
    channel = {
        "ChannelName": name,
        "DataSource": {"S3DataSource": where},
        "ContentType": source.content_type,
        "CompressionType": source.compression,
        "RecordWrapperType": source.record_wrapping,
        "InputMode": source.input_mode or "File",
        "ShuffleConfig": None if source.shuffle_config is None else {"Seed": source.shuffle_config.seed},
    }
    return _without_nothing(channel)


def _without_nothing(value: dict[str, Any]) -> dict[str, Any]:
    """Without keys whose value is None or empty, at every level."""
    cleaned = {name: _without_nothing(item) if isinstance(item, dict) else item for name, item in value.items()}
    return {name: item for name, item in cleaned.items() if item is not None and item not in ({}, [])}
