# SPDX-License-Identifier: Apache-2.0
"""Copy a recipe to a folder, as a starting point for your own: ``lightning-sagemaker cp RECIPE DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_sagemaker.recipe_files import copy_recipe

HELP = "copy a recipe as a starting point for your own"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker cp``."""
    parser.add_argument("recipe", help="name, as `lightning-sagemaker ls` lists it")
    parser.add_argument("folder", type=Path, help="new or empty")


def main(args: argparse.Namespace) -> int:
    """Copy the recipe; return the exit code."""
    return copy_recipe(args.recipe, args.folder)
