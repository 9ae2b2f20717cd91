# SPDX-License-Identifier: Apache-2.0
"""Prepare the data of a recipe before training: ``lightning-sagemaker prepare RECIPE INPUT OUTPUT [options]``.

Without arguments, list the recipes with data to prepare; the others prepare their data within a run.
``lightning-sagemaker prepare --verify FOLDER`` compares prepared data, local or in S3, with its checksums.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.recipe_packages import has_packages
from lightning_sagemaker.recipe_table import RECIPES

HELP = "prepare the data of a recipe"

_VERIFIER = "lightning_sagemaker.recipes._common.data.verify"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options; what follows the recipe's name is passed to the recipe."""
    parser.add_argument(
        "--verify",
        metavar="FOLDER",
        help="report which files of prepared data, in a folder or in s3://bucket/prefix, are unchanged; write nothing",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="RECIPE ...", help="recipe name and arguments")


def main(args: argparse.Namespace) -> int:
    """Prepare, verify or list; return the exit code."""
    if args.verify is not None:
        return int(import_module(_VERIFIER).verify(args.verify))
    prepared = {name: spec.prepares for name, spec in RECIPES.items() if spec.prepares is not None}
    if not args.command:
        print("\n".join(f"{name:<16}{what}" for name, what in prepared.items()))
        return 0
    name, *arguments = args.command
    if name not in prepared:
        raise CommandError(f"{name!r} has no preparation step. HINT: choose one of {', '.join(prepared)}.")
    if not has_packages():
        return 1
    return int(import_module(RECIPES[name].module(RECIPES[name].preparer)).main(arguments))
