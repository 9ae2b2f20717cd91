# SPDX-License-Identifier: Apache-2.0
"""The line that a logged step is printed as, and the regular expressions that read it. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lightning_sagemaker.recipe_table import RECIPES

_NUMBER = r"([-+]?(?:[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|nan|inf))"

_PAIR = re.compile(r"(?:^|\s)([\w./-]+)=([-+]?[0-9.eE+-]+|nan|inf)")

MAX_DEFINITIONS = 40
"""Of a job, by CreateTrainingJob."""

TRAINING_METRICS = (
    "epoch", "loss", "accuracy", "learning_rate", "samples_per_second", "tokens_per_second", "scaling_efficiency",
    "data_wait",
)  # fmt: skip
"""What every recipe prints while it trains."""


def format_line(metrics: Mapping[str, float], step: int | None) -> str:
    """``name=value`` pairs, the step and the epoch first; characters that would break a pair become ``_``."""
    rest = dict(metrics)
    epoch = rest.pop("epoch", None)
    head: dict[str, float | None] = {"step": step, "epoch": None if epoch is None else int(epoch)}
    pairs = {name: value for name, value in head.items() if value is not None} | rest
    return " ".join(f"{_plain_name(name)}={_plain_value(value)}" for name, value in pairs.items())


def parse_line(text: str) -> dict[str, float]:
    """The metrics of a line of :func:`format_line`, the step among them; empty for another line."""
    pairs = [word.partition("=") for word in text.split()]
    if not all(name and re.fullmatch(_NUMBER, value) for name, _, value in pairs):
        return {}
    found = {name: float(value) for name, _, value in pairs}
    return found if "step" in found else {}


def printed_values(text: str) -> dict[str, str]:
    """Name -> value as printed, of a line of any script that begins with a step or an epoch; empty for another line."""
    return dict(_PAIR.findall(text)) if text.startswith(("step=", "epoch=")) else {}


def metric_definitions(names: Iterable[str]) -> list[dict[str, str]]:
    """SageMaker's ``metric_definitions`` for lines of :func:`format_line`.

    Args:
        names: The metrics to collect, at most 40 (a limit of SageMaker).

    """
    return [{"Name": name, "Regex": rf"(?:^|\s){re.escape(_plain_name(name))}={_NUMBER}"} for name in names]


def names_of(recipe: str | None) -> tuple[str, ...]:
    """The metrics that a recipe prints; those of a script that logs as recipes do, for None."""
    if recipe is None:
        return (*TRAINING_METRICS, "train_loss", "val_loss", "val_accuracy")
    return (*TRAINING_METRICS, *(f"{stage}_{name}" for stage in ("val", "test") for name in RECIPES[recipe].metrics))


def _plain_name(name: str) -> str:
    return re.sub(r"[^\w./-]", "_", name)


def _plain_value(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{float(value):.6g}"
