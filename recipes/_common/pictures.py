# SPDX-License-Identifier: Apache-2.0
"""Training curves and confusion matrices, as PNG files and in TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning_utilities.core.imports import RequirementCache

from lightning_sagemaker.recipes._common.history import read_series

_MATPLOTLIB = RequirementCache("matplotlib")
_READABLE = 40
"""Classes of which the names and counts are written into a confusion matrix."""


def training_curves(history: Path, picture: Path) -> None:
    """Draw losses, scores and the learning rate over the steps; nothing without matplotlib.

    Args:
        history: The CSV file that Lightning's logger writes.
        picture: PNG file to write.

    """
    if not _MATPLOTLIB or not history.is_file():
        return
    series = read_series(history)
    panels = [
        ("loss", [name for name in series if name.endswith("loss")]),
        ("score", [name for name in series if is_score(name, series[name])]),
        ("learning rate", [name for name in series if name == "learning_rate"]),
    ]
    panels = [(title, names) for title, names in panels if names]
    if not panels:
        return
    figure = _figure(5 * len(panels), 3.5)
    for place, (title, names) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place)
        for name in sorted(names):
            steps, values = zip(*series[name], strict=True)
            axes.plot(steps, values, marker="." if len(steps) < 30 else None, label=name)
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.legend(fontsize="small")
    _save(figure, picture)


def is_score(name: str, points: Sequence[tuple[float, float]]) -> bool:
    """Whether a series is a score, of which more is better."""
    scores = ("accuracy", "f1", "exact", "f1_macro", "matthews_correlation", "pearson", "spearman")
    return name.removeprefix("val_").removeprefix("test_") in scores


def confusion_matrix(counts: Sequence[Sequence[int]], names: Sequence[str], picture: Path, trainer: Trainer) -> None:
    """Draw a confusion matrix, and show it in TensorBoard; nothing without matplotlib.

    Args:
        counts: ``[true class][predicted class]``.
        names: Of the classes.
        picture: PNG file to write.
        trainer: With the loggers.

    """
    if not _MATPLOTLIB:
        return
    side = max(4.0, min(16.0, 2 + 0.4 * len(names)))
    figure = _figure(side, side)
    axes = figure.add_subplot()
    totals = [max(1, sum(row)) for row in counts]
    shares = [[count / total for count in row] for row, total in zip(counts, totals, strict=True)]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if len(names) <= _READABLE:
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
        for true, row in enumerate(counts):
            for predicted, count in enumerate(row):
                if count:
                    color = "white" if shares[true][predicted] > 0.5 else "black"
                    axes.text(predicted, true, count, ha="center", va="center", fontsize="x-small", color=color)
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_figure(picture.stem, figure, trainer.global_step, close=False)
    _save(figure, picture)


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the user's backend
    return figure


def _save(figure: Any, picture: Path) -> None:
    picture.parent.mkdir(parents=True, exist_ok=True)
    temporary = picture.with_name(f".{os.getpid()}-{picture.name}")
    figure.savefig(temporary, dpi=120)
    temporary.replace(picture)
