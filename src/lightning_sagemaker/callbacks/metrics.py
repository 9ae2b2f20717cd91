# SPDX-License-Identifier: Apache-2.0
"""Logs metrics as lines that are readable for people and for log services."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

from lightning_sagemaker._lightning import Logger, rank_zero_only
from lightning_sagemaker.metric_lines import format_line, metric_definitions

__all__ = ["MetricLogger", "format_line", "metric_definitions"]


class MetricLogger(Logger):
    """Prints one line for each logged step, on rank zero: ``step=10 epoch=0 loss=5.1234 accuracy=0.1``.

    It replaces the progress bar if there is no terminal. :func:`metric_definitions` returns the regular
    expressions with which CloudWatch parses the lines.

    Args:
        stream: Output stream. Default: the current ``sys.stdout`` at each line.

    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream

    @property
    def name(self) -> str:
        """A name for the logger, which writes no files."""
        return "metric_lines"

    @property
    def version(self) -> int:
        """Always zero: there is only one version."""
        return 0

    @rank_zero_only
    def log_hyperparams(self, params: object, *args: object, **kwargs: object) -> None:
        """Does nothing, as hyperparameters are not metrics."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Print ``metrics`` as one line."""
        print(format_line(metrics, step), file=self._stream or sys.stdout, flush=True)
