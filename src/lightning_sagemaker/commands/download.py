# SPDX-License-Identifier: Apache-2.0
"""Download what a training job produced: model and output, unpacked, and optionally its checkpoints."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "download the model and the output of a training job"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker download``."""
    parser.add_argument("job", help="its name")
    parser.add_argument("folder", nargs="?", type=Path, help="target folder (default: runs/JOB)")
    parser.add_argument("--checkpoints", action="store_true", help="also download its checkpoints")
    parser.add_argument("--region")


def main(arguments: argparse.Namespace) -> int:
    """Download, and print the folders; the exit code is 2 for an error."""
    from lightning_sagemaker.errors import LaunchError
    from lightning_sagemaker.launch.tracking.jobs import TrainingJobs

    folder = arguments.folder or Path("runs", arguments.job)
    try:
        made = TrainingJobs(arguments.region).download(arguments.job, folder, arguments.checkpoints)
    except LaunchError as error:
        print(f"lightning-sagemaker download: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(str(path) for path in made))
    return 0
