# SPDX-License-Identifier: Apache-2.0
"""Run a recipe: ``lightning-sagemaker run RECIPE [fit|validate|test|predict] [LightningCLI arguments]``.

Without arguments, the recipes are listed. ``lightning-sagemaker run RECIPE --help`` lists the common options of a
recipe, ``--help-all`` all of them.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from lightning_sagemaker.recipe_packages import has_packages
from lightning_sagemaker.recipe_table import RECIPES

HELP = "run a recipe, or list the recipes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the recipe and its arguments, which are passed on."""
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="RECIPE ...", help="recipe name and arguments")


def main(args: argparse.Namespace) -> int:
    """Run or list; the exit code is 2 for an unknown recipe, 1 if packages that recipes need are missing."""
    if not args.command:
        print("\n".join(f"{name:<16}{spec.description}" for name, spec in RECIPES.items()))
        return 0
    name, *arguments = args.command
    if name not in RECIPES:
        known = ", ".join(RECIPES)
        print(f"lightning-sagemaker run: error: unknown recipe {name!r}. HINT: choose one of {known}.", file=sys.stderr)
        return 2
    if not has_packages():
        return 1
    import_module(RECIPES[name].module("train")).main(arguments)
    return 0
