# SPDX-License-Identifier: Apache-2.0
"""List the account's newest training jobs in one region, or watch those that are running."""

from __future__ import annotations

import argparse

from lightning_sagemaker.option_types import integer, seconds

HELP = "list the newest training jobs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker jobs``."""
    parser.add_argument("contains", nargs="?", default="", help="part of the name")
    parser.add_argument(
        "--limit", type=integer(1), default=20, metavar="N", help="maximum number of jobs (default: 20)"
    )
    parser.add_argument("--region")
    parser.add_argument("--watch", action="store_true", help="show running jobs until none is left")
    parser.add_argument("--poll", type=seconds, default=10.0, metavar="SECONDS", help="polling interval (default: 10)")


def main(arguments: argparse.Namespace) -> int:
    """Print a line for each job, or watch the running jobs; return the exit code."""
    from lightning_sagemaker.launch.tracking.jobs import TrainingJobs

    if arguments.watch:
        from lightning_sagemaker.launch.tracking.watch import Watch, watch_jobs

        watch_jobs(Watch(TrainingJobs(arguments.region), arguments.contains, arguments.limit), arguments.poll)
        return 0
    for name, status, created in TrainingJobs(arguments.region).list(arguments.contains, arguments.limit):
        print(f"{name:<64}{status:<12}{created:%Y-%m-%d %H:%M}")
    return 0
