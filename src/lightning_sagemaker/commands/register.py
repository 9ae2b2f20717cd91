# SPDX-License-Identifier: Apache-2.0
"""Register the model of a training job in SageMaker's model registry, where it waits for approval.

``lightning-sagemaker launch ... --register GROUP`` does so by itself when the job has succeeded.
"""

from __future__ import annotations

import argparse
import sys

HELP = "register the model of a job"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker register``."""
    parser.add_argument("job")
    parser.add_argument("group", help="model package group; made if it does not exist")
    parser.add_argument(
        "--inference-image", metavar="URI", help="to serve it with (default: the training's, which has no server)"
    )
    parser.add_argument("--commit", help="of the source (default: that of the current folder)")
    parser.add_argument("--dry-run", action="store_true", help="print the request as JSON, and end")
    parser.add_argument("--region")


def main(arguments: argparse.Namespace) -> int:
    """Register it; the exit code is 2 for a mistake."""
    import json

    from lightning_sagemaker.errors import LaunchError
    from lightning_sagemaker.launch.tracking.jobs import TrainingJobs
    from lightning_sagemaker.launch.tracking.registry import check_group, git_source, package_request, register

    source = git_source() | ({"CommitId": arguments.commit} if arguments.commit else {})
    try:
        check_group(arguments.group)
        jobs = TrainingJobs(arguments.region)
        if arguments.dry_run:
            job = jobs.describe(arguments.job).description
            print(json.dumps(package_request(job, arguments.group, arguments.inference_image, source), indent=2))
            return 0
        arn = register(jobs, arguments.job, arguments.group, arguments.inference_image, source)
    except LaunchError as error:
        print(f"lightning-sagemaker register: error: {error}", file=sys.stderr)
        return 2
    print(f"registered: {arn} (PendingManualApproval)")
    return 0
