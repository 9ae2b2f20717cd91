# SPDX-License-Identifier: Apache-2.0
"""Print a template: CloudFormation for the AWS resources of a job, or a Dockerfile.

Example: ``lightning-sagemaker template role > role.yaml``, then ``aws cloudformation deploy``.
"""

from __future__ import annotations

import argparse
from importlib import resources

from lightning_sagemaker.errors import CommandError

HELP = "print a template: execution role, FSx for Lustre, TensorBoard host, Dockerfile"

TEMPLATES = {
    "role": ("role.yaml", "execution role for training jobs, with minimal permissions"),
    "fsx": ("fsx.yaml", "FSx for Lustre linked to a bucket, in a VPC"),
    "tensorboard": ("tensorboard.yaml", "a host that shows TensorBoard of running jobs"),
    "dockerfile": ("Dockerfile", "a training image on AWS's Deep Learning Container"),
}
"""Name -> file name and description."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker template``."""
    parser.add_argument("name", nargs="?", help="default: list them")


def main(arguments: argparse.Namespace) -> int:
    """Print a template, or list them; return the exit code."""
    if arguments.name is None:
        print("\n".join(f"{name:<14}{text}" for name, (_, text) in TEMPLATES.items()))
        return 0
    if arguments.name not in TEMPLATES:
        known = ", ".join(TEMPLATES)
        raise CommandError(f"unknown template {arguments.name!r}. HINT: choose one of {known}.")
    print(read_template(arguments.name), end="")
    return 0


def read_template(name: str) -> str:
    """The text of a template in :data:`TEMPLATES`."""
    return (resources.files("lightning_sagemaker.launch") / "templates" / TEMPLATES[name][0]).read_text()
