# SPDX-License-Identifier: Apache-2.0
"""Register the model of a completed job in SageMaker's model registry, where it waits for approval."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from lightning_sagemaker.aws_types import Client
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.aws import translate_aws_errors
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.tracking.endpoint import model_source
from lightning_sagemaker.launch.tracking.jobs import TrainingJobs

CONTENT_TYPES = ("application/json",)
"""MIME types that the recipes' serving code accepts and returns."""

_GROUP = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_UNUSUAL = re.compile(r"[^\w .:/=+@-]")
"""Characters that the registry rejects in a property."""
_MOST_PROPERTIES, _LONGEST_VALUE = 50, 256


def check_group(name: str) -> None:
    """Refuse a name that no model package group can have.

    Raises:
        LaunchError: If it is such a name.

    """
    if not _GROUP.fullmatch(name):
        raise LaunchError(
            f"The model package group {name!r} was given. HINT: use 1 to 63 letters, digits and dashes, without a dash "
            "at either end."
        )


def git_source(config: JobConfig | None = None) -> dict[str, str]:
    """Repository and commit of a job's source: of the clone, or of the checkout from which it was sent.

    Args:
        config: The job; None for the current folder.

    Returns:
        ``Repository`` and ``CommitId`` as far as they are known; empty for a recipe of this package.

    """
    if config is not None and config.git_config is not None:
        found = {"Repository": config.git_config["repo"], "CommitId": config.git_config.get("commit", "")}
    elif config is not None and config.recipe is not None and config.source_dir is None:
        return {}  # the source is this package's
    else:
        folder = Path("." if config is None or config.source_dir is None else config.source_dir)
        found = {
            "Repository": _git(folder, "remote", "get-url", "origin"),
            "CommitId": _git(folder, "rev-parse", "HEAD"),
        }
    found["Repository"] = _without_password(found["Repository"])
    return {name: value for name, value in found.items() if value}


def package_request(
    job: Mapping[str, Any], group: str, image: str | None = None, source: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The CreateModelPackage request for a job.

    Args:
        job: Answer of DescribeTrainingJob.
        group: Name of the model package group.
        image: URI of the inference image; the training image, which has no server, when None.
        source: Repository and commit, as of :func:`git_source`.

    """
    name = job["TrainingJobName"]
    settings = job.get("HyperParameters", {})
    program = settings.get("sagemaker_program") or job.get("Environment", {}).get("SM_USER_ENTRY_POINT", "")
    properties = {"training_job": name, "program": str(program).strip('"')}
    properties |= {metric: f"{value:.6g}" for metric, value in _metrics(job).items()}
    container = {
        "Image": image or job["AlgorithmSpecification"]["TrainingImage"],
        **model_source(job),
    }
    metadata = {"GeneratedBy": job.get("TrainingJobArn", ""), **(source or {})}
    return {
        "ModelPackageGroupName": group,
        "ModelPackageDescription": f"Model of the training job {name}",
        "ModelApprovalStatus": "PendingManualApproval",
        "InferenceSpecification": {
            "Containers": [container],
            "SupportedContentTypes": list(CONTENT_TYPES),
            "SupportedResponseMIMETypes": list(CONTENT_TYPES),
        },
        "ModelMetrics": {
            "ModelQuality": {"Statistics": {"ContentType": "application/json", "S3Uri": _metrics_place(job)}}
        },
        "MetadataProperties": {key: value for key, value in metadata.items() if value},
        "CustomerMetadataProperties": _taken(properties),
    }


def register(
    jobs: TrainingJobs, name: str, group: str, image: str | None = None, source: Mapping[str, str] | None = None
) -> str:
    """Register the model of a completed job, in a group that is created if it does not exist.

    Args:
        jobs: The account's jobs, with the session.
        name: Name of the job.
        group: Name of the model package group.
        image: As in :func:`package_request`.
        source: As in :func:`package_request`.

    Returns:
        The ARN of the model package, which waits for approval.

    Raises:
        LaunchError: If the job has not completed, or AWS rejects a request.

    """
    check_group(group)
    status = jobs.describe(name)
    if status.status != "Completed":
        raise LaunchError(
            f"The job {name} is {status.status}, so there is no model to register. HINT: wait until it is Completed."
        )
    request = package_request(status.description, group, image, source)
    client = jobs.sagemaker
    with translate_aws_errors(f"Registering the model of {name!r}"):
        _make_group(client, group)
        place = urlsplit(request["ModelMetrics"]["ModelQuality"]["Statistics"]["S3Uri"])
        body = json.dumps({"training_job": name, "metrics": _metrics(status.description)}).encode()
        jobs.session.client("s3").put_object(Bucket=place.netloc, Key=place.path[1:], Body=body)
        return str(client.create_model_package(**request)["ModelPackageArn"])


def _make_group(client: Client, group: str) -> None:
    pages = client.get_paginator("list_model_package_groups").paginate(NameContains=group)
    known = {one["ModelPackageGroupName"] for page in pages for one in page["ModelPackageGroupSummaryList"]}
    if group not in known:
        client.create_model_package_group(ModelPackageGroupName=group)


def _metrics(job: Mapping[str, Any]) -> dict[str, float]:
    """Metric -> last value that SageMaker has read from the job's log."""
    return {one["MetricName"]: float(one["Value"]) for one in job.get("FinalMetricDataList", ())}


def _metrics_place(job: Mapping[str, Any]) -> str:
    return f"{job['ModelArtifacts']['S3ModelArtifacts'].rpartition('/')[0]}/metrics.json"


def _taken(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties, cut to the number, length and characters that the registry accepts."""
    pairs = [(_UNUSUAL.sub("_", key), _UNUSUAL.sub("_", value)) for key, value in properties.items() if value]
    return {key[:128]: value[:_LONGEST_VALUE] for key, value in pairs[:_MOST_PROPERTIES]}


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _without_password(address: str) -> str:
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.scheme else address
