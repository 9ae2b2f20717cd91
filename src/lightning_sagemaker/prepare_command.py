# SPDX-License-Identifier: Apache-2.0
"""Prepare the data of a recipe before training: ``lightning-sagemaker prepare RECIPE INPUT OUTPUT [options]``.

Without arguments, the recipes with data to prepare are listed. Others prepare theirs within a run.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

HELP = "prepare the data of a recipe"

PREPARERS = {
    "albert-mlm": (
        "lightning_sagemaker.recipes.albert_mlm.prepare_text",
        "text to tokenised, sentence-segmented shards",
    ),
}
"""Name -> module with ``main(arguments) -> exit code`` -> description."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything after ``prepare`` is the recipe's own."""
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="RECIPE ...", help="name and arguments")


def main(args: argparse.Namespace) -> int:
    """Prepare or list; the exit code is 2 for a name that has nothing to prepare."""
    if not args.command:
        print("\n".join(f"{name:<16}{description}" for name, (_, description) in PREPARERS.items()))
        return 0
    name, *arguments = args.command
    if name not in PREPARERS:
        print(
            f"error: nothing is to prepare for {name!r}. HINT: choose one of {', '.join(PREPARERS)}.", file=sys.stderr
        )
        return 2
    return int(import_module(PREPARERS[name][0]).main(arguments))
