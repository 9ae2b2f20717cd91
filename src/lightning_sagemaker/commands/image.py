# SPDX-License-Identifier: Apache-2.0
"""Write the build context of your own training image, and print the commands that build and push it.

The image is AWS's Deep Learning Container with this package and your requirements installed, so that a job
starts without installing anything, or without network access.
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

HELP = "prepare a training image of your own"

_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"(?=.{{2,256}}$){_PART}(?:/{_PART})*")
"""What ECR's CreateRepository accepts as ``repositoryName``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker image``."""
    parser.add_argument("folder", nargs="?", type=Path, default=Path("image"), help="default: image")
    parser.add_argument("--name", default="lightning-sagemaker", help="name of the repository (default: %(default)s)")
    parser.add_argument("--account", default="111122223333", help="your account (default: AWS's example %(default)s)")
    parser.add_argument("--region", help="default: the one that AWS is configured with")
    parser.add_argument("--pytorch-version", help="of AWS's image")
    parser.add_argument("--instance-type", default="ml.p4d.24xlarge", help="its instance type (default: %(default)s)")
    parser.add_argument("--requirements", type=Path, help="your own requirements.txt")


def main(arguments: argparse.Namespace) -> int:
    """Write the folder and print the commands; return the exit code."""
    print("\n".join(prepare(arguments)))
    return 0


def prepare(arguments: argparse.Namespace) -> list[str]:
    """Write the build context of the image; return the shell commands, one per item.

    Raises:
        LaunchError: If there is no such base image, the requirements would replace its torch, or the folder has a
            different Dockerfile.

    """
    from lightning_sagemaker.commands.template import read_template
    from lightning_sagemaker.errors import LaunchError
    from lightning_sagemaker.launch.planning.images import find_image
    from lightning_sagemaker.launch.planning.plan import own_region
    from lightning_sagemaker.launch.source.requirements import REQUIREMENTS, check_requirements
    from lightning_sagemaker.launch.source.wheel import make_wheel
    from lightning_sagemaker.text_files import write_text

    if not re.fullmatch(r"\d{12}", arguments.account):
        raise LaunchError(f"--account {arguments.account!r} was given. HINT: an account's number has 12 digits.")
    if not _REPOSITORY.fullmatch(arguments.name):
        raise LaunchError(
            f"--name {arguments.name!r} was given. HINT: a repository's name has 2 to 256 lowercase letters and digits,"
            " separated by dashes, dots, slashes or underscores."
        )
    region = arguments.region or own_region()
    base = find_image(region, arguments.instance_type, arguments.pytorch_version).uri
    wanted = b""
    if arguments.requirements is not None:
        if not arguments.requirements.is_file():
            raise LaunchError(f"--requirements {arguments.requirements} is not a file. HINT: give an existing one.")
        wanted = arguments.requirements.read_bytes()
        check_requirements({REQUIREMENTS: wanted})
    folder, (wheel, content) = arguments.folder, make_wheel()
    recipe, template = folder / "Dockerfile", read_template("dockerfile")
    if recipe.is_file() and recipe.read_bytes() != template.encode():
        raise LaunchError(f"{str(recipe)!r} exists with different contents. HINT: choose another folder.")
    write_text(recipe, template)
    (folder / REQUIREMENTS).write_bytes(wanted)
    (folder / wheel).write_bytes(content)
    own, theirs = f"{arguments.account}.dkr.ecr.{region}.{_domain(base)}", base.partition("/")[0]
    image = f"{own}/{arguments.name}:{base.rpartition(':')[2]}"
    login = f"aws ecr get-login-password --region {region} | docker login --username AWS --password-stdin"
    return [
        f"{login} {theirs}",
        f"docker build --build-arg BASE_IMAGE={base} --tag {image} {shlex.quote(str(folder))}",
        f"aws ecr create-repository --region {region} --repository-name {arguments.name}",
        f"{login} {own}",
        f"docker push {image}",
        f"# then: lightning-sagemaker launch ... --set image_uri={image} --set include_plugin=false",
    ]


def _domain(uri: str) -> str:
    return uri.partition("/")[0].partition(".ecr.")[2].partition(".")[2]
