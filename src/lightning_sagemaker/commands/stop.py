# SPDX-License-Identifier: Apache-2.0
"""Stop a training job: its processes receive SIGTERM and have 120 seconds to write a checkpoint."""

from __future__ import annotations

import argparse

HELP = "stop a training job"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker stop``."""
    parser.add_argument("job", help="its name")
    parser.add_argument("--region")


def main(arguments: argparse.Namespace) -> int:
    """Request the stop; return the exit code."""
    from lightning_sagemaker.launch.tracking.jobs import TrainingJobs

    TrainingJobs(arguments.region).stop(arguments.job)
    print(f"{arguments.job}: stop requested")
    return 0
