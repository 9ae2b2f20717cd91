# SPDX-License-Identifier: Apache-2.0
"""Download what a training job produced: model and output, unpacked, and optionally its checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "download the model and the output of a training job"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker download``."""
    parser.add_argument("job", help="its name")
    parser.add_argument("folder", nargs="?", type=Path, help="target folder (default: runs/JOB)")
    parser.add_argument("--checkpoints", action="store_true", help="also download its checkpoints")
    parser.add_argument("--region")


def main(arguments: argparse.Namespace) -> int:
    """Download, and print the folders; return the exit code."""
    from lightning_sagemaker.launch.tracking.jobs import TrainingJobs

    folder = arguments.folder or Path("runs", arguments.job)
    made = TrainingJobs(arguments.region).download(arguments.job, folder, arguments.checkpoints)
    print("\n".join(str(path) for path in made))
    return 0
