# SPDX-License-Identifier: Apache-2.0
"""Training curves and confusion matrices, as PNG files and in TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning_utilities.core.imports import RequirementCache

from lightning_sagemaker.recipes._common.outputs.history import read_series

_MATPLOTLIB = RequirementCache("matplotlib")
_INCH_OF_CLASS = {20: 0.5, 40: 0.4, 120: 0.26}
"""Maximum number of classes -> inches for each in a confusion matrix, for its name and counts; with more classes, names
are left out."""


def training_curves(history: Path, picture: Path) -> None:
    """Draw losses, scores and the learning rate over the steps, one panel for each scale; nothing without matplotlib.

    Args:
        history: The CSV file that Lightning's logger writes.
        picture: PNG file to write.

    """
    if not _MATPLOTLIB or not history.is_file():
        return
    series = read_series(history)
    panels = curve_panels(series)
    if not panels:
        return
    width = 5 * len(panels)
    figure = _figure(width, 3.5)
    # A layout engine measures every label, which takes longer than drawing them. In inches: 0.8 for the labels on the left
    # of a panel and 0.15 on its right leave 4.05 of 5 for its axes, of whose width the space between two is a share.
    figure.subplots_adjust(left=0.8 / width, right=1 - 0.15 / width, bottom=0.15, top=0.9, wspace=0.95 / 4.05)
    for place, (title, names) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place)
        for name in sorted(names):
            steps, values = zip(*series[name], strict=True)
            axes.plot(steps, values, marker="." if len(steps) < 30 else None, label=name)
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.legend(fontsize="small")
    _save(figure, picture)


def curve_panels(series: Mapping[str, Sequence[tuple[float, float]]]) -> list[tuple[str, list[str]]]:
    """Title and series of each panel, all of one scale."""
    scores = [name for name in series if is_score(name, series[name])]
    percent = [name for name in scores if any(value > 1 for _, value in series[name])]
    panels = [
        ("loss", [name for name in series if name.endswith("loss")]),
        ("score", [name for name in scores if name not in percent]),
        ("score in percent", percent),
        ("learning rate", [name for name in series if name == "learning_rate"]),
    ]
    return [(title, names) for title, names in panels if names]


def is_score(name: str, points: Sequence[tuple[float, float]]) -> bool:
    """Whether a series is a score, of which higher is better."""
    scores = ("accuracy", "f1", "exact", "f1_macro", "matthews_correlation", "pearson", "spearman")
    return name.removeprefix("val_").removeprefix("test_") in scores


def confusion_matrix(counts: Sequence[Sequence[int]], names: Sequence[str], picture: Path, trainer: Trainer) -> None:
    """Draw a confusion matrix, and show it in TensorBoard; nothing without matplotlib.

    Args:
        counts: ``[true class][predicted class]``.
        names: Names of the classes.
        picture: PNG file to write.
        trainer: Trainer with the loggers.

    """
    if not _MATPLOTLIB:
        return
    room = next((inch for most, inch in _INCH_OF_CLASS.items() if len(names) <= most), None)
    margin = 1.5 if room is None else 1 + 0.07 * max(map(len, names))
    side = 16.0 if room is None else max(4.0, margin + room * len(names))
    figure = _figure(side + 0.8, side)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    totals = [max(1, sum(row)) for row in counts]
    shares = [[count / total for count in row] for row, total in zip(counts, totals, strict=True)]
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the true class", fraction=0.03, pad=0.01)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if room is not None:
        size = "medium" if room >= 0.4 else 8
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
        axes.set_yticks(range(len(names)), names, fontsize=size)
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

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)  # no window, whatever the user's backend
    return figure


def _save(figure: Any, picture: Path) -> None:
    picture.parent.mkdir(parents=True, exist_ok=True)
    temporary = picture.with_name(f".{os.getpid()}-{picture.name}")
    figure.savefig(temporary, dpi=120)
    temporary.replace(picture)
