# SPDX-License-Identifier: Apache-2.0
"""List the recipes with their configurations and where their files are."""

from __future__ import annotations

import argparse

from lightning_sagemaker.recipe_files import list_recipes

HELP = "list the recipes and their configurations"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no options."""


def main(args: argparse.Namespace) -> int:
    """Print the recipes; return the exit code."""
    return list_recipes()
