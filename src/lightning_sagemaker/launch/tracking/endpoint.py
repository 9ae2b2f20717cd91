# SPDX-License-Identifier: Apache-2.0
"""Create an endpoint for the model of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.aws import translate_aws_errors
from lightning_sagemaker.launch.tracking.jobs import JobStatus

_OF_JOB = ("VpcConfig", "EnableNetworkIsolation")
"""What a model takes over from its job, as in SDK 2: a server is no less protected than the training."""


def create_endpoint(job: JobStatus, name: str, image: str, instance_type: str, instance_count: int) -> None:
    """Create model, endpoint configuration and endpoint, all of the same name.

    Args:
        job: The job, with its artifact.
        name: Name of the endpoint.
        image: URI of the inference image.
        instance_type: Instance type of each host.
        instance_count: Number of hosts.

    Raises:
        LaunchError: If the job has no model yet, or AWS rejects a request.

    """
    if job.model_data is None:
        raise LaunchError(
            f"The job {job.name} is {job.status} and has no model. HINT: deploy once it is Completed; wait() waits for it."
        )
    about, client = job.description, job.jobs.sagemaker
    variant = {
        "VariantName": "AllTraffic",
        "ModelName": name,
        "InitialInstanceCount": instance_count,
        "InstanceType": instance_type,
    }
    with translate_aws_errors("Deploying the model"):
        client.create_model(
            ModelName=name,
            PrimaryContainer={"Image": image, **model_source(about)},
            ExecutionRoleArn=about["RoleArn"],
            **{part: about[part] for part in _OF_JOB if about.get(part)},
        )
        client.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant])
        client.create_endpoint(EndpointName=name, EndpointConfigName=name)


def model_source(job: Mapping[str, Any]) -> dict[str, object]:
    """A container's key for a job's model: an archive, or below a prefix files that were not compressed.

    Args:
        job: Answer of DescribeTrainingJob.

    """
    place = str(job["ModelArtifacts"]["S3ModelArtifacts"])
    if job.get("OutputDataConfig", {}).get("CompressionType") != "NONE":
        return {"ModelDataUrl": place}
    where = {"S3Uri": f"{place.rstrip('/')}/", "S3DataType": "S3Prefix", "CompressionType": "None"}
    return {"ModelDataSource": {"S3DataSource": where}}
