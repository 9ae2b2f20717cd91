# SPDX-License-Identifier: Apache-2.0
"""Register the model of a training job in SageMaker's model registry, where it waits for approval.

``lightning-sagemaker launch ... --register GROUP`` does so when the job has completed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, Any

from lightning_sagemaker.errors import LaunchError

if TYPE_CHECKING:
    from lightning_sagemaker.launch.estimator import Estimator
    from lightning_sagemaker.launch.spec.config import JobConfig

HELP = "register the model of a job"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker register``."""
    parser.add_argument("job")
    parser.add_argument("group", help="model package group; created if it does not exist")
    parser.add_argument(
        "--inference-image", metavar="URI", help="inference image (default: the training image, which has no server)"
    )
    parser.add_argument("--commit", help="commit of the source (default: that of the current folder)")
    parser.add_argument("--dry-run", action="store_true", help="print the request as JSON, and exit")
    parser.add_argument("--region")


def main(arguments: argparse.Namespace) -> int:
    """Register the model; return the exit code."""
    import json

    from lightning_sagemaker.launch.tracking.jobs import TrainingJobs
    from lightning_sagemaker.launch.tracking.registry import check_group, git_source, package_request, register

    source = git_source() | ({"CommitId": arguments.commit} if arguments.commit else {})
    check_group(arguments.group)
    jobs = TrainingJobs(arguments.region)
    if arguments.dry_run:
        job = jobs.describe(arguments.job).description
        print(json.dumps(package_request(job, arguments.group, arguments.inference_image, source), indent=2))
        return 0
    arn = register(jobs, arguments.job, arguments.group, arguments.inference_image, source)
    print(f"registered: {arn} (PendingManualApproval)")
    return 0


def with_registration(request: dict[str, Any], arguments: argparse.Namespace, config: JobConfig) -> dict[str, object]:
    """Requests of ``--dry-run --register``: CreateTrainingJob, and CreateModelPackage without the job's metrics."""
    from lightning_sagemaker.launch.tracking.registry import git_source, package_request

    place = (
        f"{request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{request['TrainingJobName']}/output/model.tar.gz"
    )
    job = {**request, "ModelArtifacts": {"S3ModelArtifacts": place}}
    package = package_request(job, arguments.register, arguments.inference_image, git_source(config))
    return {"CreateTrainingJob": request, "CreateModelPackage": package}


def register_model(arguments: argparse.Namespace, estimator: Estimator) -> int:
    """Register the model after ``launch --register``; return the exit code."""
    from lightning_sagemaker.launch.tracking.registry import git_source, register

    source = git_source(estimator.config)
    try:
        arn = register(estimator.jobs, str(estimator.job_name), arguments.register, arguments.inference_image, source)
    except LaunchError as error:
        print(
            f"The model was not registered: {error} Later: `{register_command(arguments, estimator)}`.",
            file=sys.stderr,
        )
        return 1
    print(f"registered: {arn} (PendingManualApproval)")
    if arguments.inference_image is None:
        print("It refers to the training image, which has no server; set --inference-image to deploy it.")
    return 0


def register_command(arguments: argparse.Namespace, estimator: Estimator) -> str:
    """The command that registers the model of ``launch --register`` later."""
    from lightning_sagemaker.launch.tracking.registry import git_source

    words = ["lightning-sagemaker", "register", str(estimator.job_name), arguments.register]
    if arguments.inference_image:
        words += ["--inference-image", arguments.inference_image]
    if commit := git_source(estimator.config).get("CommitId"):
        words += ["--commit", commit]
    return shlex.join(words)
