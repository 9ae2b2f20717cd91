# SPDX-License-Identifier: Apache-2.0
"""Print SageMaker's metric definitions for the lines that a recipe, or any script with ``MetricLogger``, prints."""

from __future__ import annotations

import argparse
import json
import sys

from lightning_sagemaker.metric_lines import RECIPE_METRICS, metric_definitions, names_of

HELP = "print the metric definitions of a recipe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker metrics``."""
    parser.add_argument("recipe", nargs="?", help="its name; without one, those of a script that logs as recipes do")
    parser.add_argument("--name", action="append", default=[], help="a further metric of the script; repeatable")
    parser.add_argument("--json", action="store_true", help="as JSON, for an estimator's metric_definitions")


def main(arguments: argparse.Namespace) -> int:
    """Print them."""
    if arguments.recipe is not None and arguments.recipe not in RECIPE_METRICS:
        known = ", ".join(RECIPE_METRICS)
        print(f"error: no recipe is called {arguments.recipe!r}. HINT: choose one of {known}.", file=sys.stderr)
        return 2
    definitions = metric_definitions([*names_of(arguments.recipe), *arguments.name])
    if arguments.json:
        print(json.dumps(definitions, indent=2))
    else:
        print("\n".join(f"{one['Name']:<24}{one['Regex']}" for one in definitions))
    return 0
