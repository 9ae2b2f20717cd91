# SPDX-License-Identifier: Apache-2.0
"""Show a training job's log from its beginning, and follow it until the job has ended."""

from __future__ import annotations

import argparse

from lightning_sagemaker.option_types import seconds

HELP = "follow the log of a training job"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker logs``."""
    parser.add_argument("job", help="its name")
    parser.add_argument("--poll", type=seconds, default=10.0, metavar="SECONDS", help="polling interval (default: 10)")
    parser.add_argument("--region")


def main(arguments: argparse.Namespace) -> int:
    """Follow the log; the exit code is 1 if the job did not complete."""
    from lightning_sagemaker.launch.tracking.jobs import TrainingJobs

    status = TrainingJobs(arguments.region).follow(arguments.job, poll=arguments.poll)
    print(f"{status.name}: {status.status}{f': {status.reason}' if status.reason else ''}")
    return 0 if status.status == "Completed" else 1
