# SPDX-License-Identifier: Apache-2.0
"""Print SageMaker's metric definitions for the lines that a recipe, or any script with ``MetricLogger``, prints.

``--send FOLDER`` sends to MLflow the metrics that ``MLflowLogger`` kept there because the server did not answer, or
writes those of ``OfflineWandbLogger`` as offline runs for ``wandb sync``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.loggers.journal import Journal
from lightning_sagemaker.metric_lines import metric_definitions, names_of
from lightning_sagemaker.recipe_table import RECIPES

HELP = "print the metric definitions of a recipe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker metrics``."""
    parser.add_argument("recipe", nargs="?", help="recipe name; default: a script that logs like the recipes")
    parser.add_argument("--name", action="append", default=[], help="another metric of the script; repeatable")
    parser.add_argument("--json", action="store_true", help="as JSON, for an estimator's metric_definitions")
    parser.add_argument(
        "--send",
        type=Path,
        metavar="FOLDER",
        help="send pending metrics to MLflow, or write W&B's offline runs; and exit",
    )


def main(arguments: argparse.Namespace) -> int:
    """Print the definitions, or send pending metrics; the exit code is 1 if some were not sent."""
    if arguments.send is not None:
        return _send(arguments.send)
    if arguments.recipe is not None and arguments.recipe not in RECIPES:
        known = ", ".join(RECIPES)
        raise CommandError(f"unknown recipe {arguments.recipe!r}. HINT: choose one of {known}.")
    definitions = metric_definitions([*names_of(arguments.recipe), *arguments.name])
    if arguments.json:
        print(json.dumps(definitions, indent=2))
    else:
        print("\n".join(f"{one['Name']:<24}{one['Regex']}" for one in definitions))
    return 0


def _send(folder: Path) -> int:
    from lightning_sagemaker.loggers.address import TrackingError, tracking_address
    from lightning_sagemaker.loggers.journal import journals
    from lightning_sagemaker.loggers.sender import send_all

    found = journals(folder)
    if not found:
        raise CommandError(
            f"no pending metrics in {folder}. HINT: give the folder `mlflow` or `wandb` in a run's output."
        )
    if any("project" in (journal.about or {}) for journal in found):
        return _make_offline_runs(found)
    try:
        for journal in found:
            tracking_address((journal.about or {}).get("address", ""))
    except TrackingError as error:
        raise CommandError(str(error)) from error
    sent = send_all(folder)
    for journal, why_not in sent:
        print(f"{journal.path}: {why_not or 'sent'}")
    if not sent:
        print(f"{folder}: all metrics sent")
    return 1 if any(why_not for _, why_not in sent) else 0


def _make_offline_runs(found: Sequence[Journal]) -> int:
    from lightning_sagemaker.loggers.wandb_export import export

    try:
        for journal in found:
            print(f"wandb sync {export(journal, journal.folder)}")
    except ImportError as error:
        raise CommandError("W&B's runs need the package wandb, not installed here. HINT: pip install wandb.") from error
    return 0
