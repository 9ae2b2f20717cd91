# SPDX-License-Identifier: Apache-2.0
"""Metrics as lines that a person and a log service can both read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

_NUMBER = r"([-+]?(?:[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|nan|inf))"


class MetricLogger(Logger):
    """Prints one line for each logged step, on rank zero: ``step=10 epoch=0 loss=5.1234 accuracy=0.1``.

    It takes the place of a progress bar where there is no terminal. :func:`metric_definitions` gives the regular
    expressions with which CloudWatch reads the lines.

    Args:
        stream: Where to; standard output by default, looked up at each line.

    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream

    @property
    def name(self) -> str:
        """A name for the logger, which keeps no files."""
        return "metric_lines"

    @property
    def version(self) -> int:
        """Always zero: there is nothing to tell apart."""
        return 0

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Hyperparameters are not metrics: nothing is printed."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Print ``metrics`` as one line."""
        print(format_line(metrics, step), file=self._stream or sys.stdout, flush=True)


def format_line(metrics: Mapping[str, float], step: int | None) -> str:
    """``name=value`` pairs, the step and the epoch first; characters that would break a pair become ``_``."""
    rest = dict(metrics)
    epoch = rest.pop("epoch", None)
    head: dict[str, float | None] = {"step": step, "epoch": None if epoch is None else int(epoch)}
    pairs = {name: value for name, value in head.items() if value is not None} | rest
    return " ".join(f"{_plain_name(name)}={_plain_value(value)}" for name, value in pairs.items())


def metric_definitions(names: Iterable[str]) -> list[dict[str, str]]:
    """SageMaker's ``metric_definitions`` for the lines of :class:`MetricLogger`.

    Args:
        names: The metrics to collect, at most 40 (a limit of SageMaker).

    """
    return [{"Name": name, "Regex": rf"(?:^|\s){re.escape(_plain_name(name))}={_NUMBER}"} for name in names]


def _plain_name(name: str) -> str:
    return re.sub(r"[^\w./-]", "_", name)


def _plain_value(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{float(value):.6g}"
