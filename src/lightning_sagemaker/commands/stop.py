# SPDX-License-Identifier: Apache-2.0
"""Ask a training job to stop: its processes get SIGTERM and have 120 seconds to write a checkpoint."""

from __future__ import annotations

import argparse
import sys

HELP = "stop a training job"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker stop``."""
    parser.add_argument("job", help="its name")
    parser.add_argument("--region")


def main(arguments: argparse.Namespace) -> int:
    """Request the stop; the exit code is 2 for an error."""
    from lightning_sagemaker.errors import LaunchError
    from lightning_sagemaker.launch.tracking.jobs import TrainingJobs

    try:
        TrainingJobs(arguments.region).stop(arguments.job)
    except LaunchError as error:
        print(f"lightning-sagemaker stop: error: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.job}: stop requested")
    return 0
