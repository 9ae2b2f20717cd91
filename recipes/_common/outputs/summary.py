# SPDX-License-Identifier: Apache-2.0
"""The first lines of a run, about its inputs, and the last, about its outputs and the next steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lightning_sagemaker.recipes._common.outputs.best import Exported
from lightning_sagemaker.recipes._common.outputs.folders import RunFolders
from lightning_sagemaker.recipes._common.outputs.history import read_series
from lightning_sagemaker.recipes._common.outputs.pictures import is_score

_COMMAND = ("lightning-sagemaker", "run")


def first_lines(recipe: str, stage: str, uses: Mapping[str, str]) -> list[str]:
    """Lines about a run's inputs.

    Args:
        recipe: Name of the recipe.
        stage: ``fit``, ``validate``, ``test`` or ``predict``.
        uses: Kind of input or output -> its name or path.

    """
    return [f"{recipe} {stage}", *_table(uses.items())]


def training_lines(
    recipe: str,
    names: Iterable[str],
    task: str,
    folders: RunFolders,
    done: str,
    exported: Exported,
    tested: Mapping[str, float],
    findings: Sequence[tuple[str, str]] = (),
) -> list[str]:
    """Lines about the results of training, its files, and commands for the next steps.

    Args:
        recipe: Name of the recipe.
        names: Short option names of the recipe.
        task: Task name of transformers' ``pipeline`` that serves the model.
        folders: Folders of the run.
        done: How training ended.
        exported: The exported weights.
        tested: Name -> value of the test that followed; empty without a test.
        findings: Name and text of each finding of the best validation.

    """
    output, model = folders.output, folders.model
    rows = [(name, f"{value:.4f}") for name, value in sorted(tested.items()) if is_quality(name)]
    rows += [("exported", str(exported)), ("model", str(model))]
    rows += _existing(
        ("metrics", output / "metrics.json"),
        ("curves", output / "curves.png"),
        ("confusion", output / "confusion-validate.png"),
        ("report", output / "report-validate.json"),
        ("data report", output / "data.html"),
        ("evaluation", output / "report-validate.html"),
        ("checkpoint", exported.checkpoint),
    )
    config = output / "config.yaml"
    if config.is_file() and exported.checkpoint.exists():
        rows += [("to test", _command(recipe, "test", "--config", config, "--ckpt_path", exported.checkpoint))]
    if "predict_file" in names:
        rows += [("to predict", _command(recipe, "predict", "--pretrained", model, "--predict_file", "FILE"))]
    rows += [("to serve", f"transformers.pipeline({task!r}, {str(model)!r}); on SageMaker {model / 'code'}")]
    return [f"{recipe} fit: {done}", *_table([*_scores(output), *findings, *rows])]


def evaluation_lines(
    recipe: str,
    stage: str,
    metrics: Mapping[str, float],
    folders: RunFolders,
    findings: Sequence[tuple[str, str]] = (),
) -> list[str]:
    """Lines about the metrics and findings of an evaluation, and its files."""
    output = folders.output
    scores = [
        (name, f"{value:.4g}") for name, value in sorted(metrics.items()) if name.split("_")[0] in ("val", "test")
    ]
    files = _existing(
        ("metrics", output / f"metrics-{stage}.json"),
        ("report", output / f"report-{stage}.html"),
        ("confusion", output / f"confusion-{stage}.png"),
        ("predictions", output / "predictions.csv"),
        ("predictions", output / ("predictions-test.json" if stage == "test" else "predictions.json")),
    )
    return [f"{recipe} {stage}: done", *_table([*scores, *findings, *files])]


def interruption_lines(recipe: str, folders: RunFolders) -> list[str]:
    """Lines with the command that resumes an interrupted run."""
    root = folders.output.parent
    again = _command(recipe, "fit", "--config", folders.output / "config.yaml", "--run_dir", root, "--resume", "always")
    return [f"{recipe} fit: interrupted", *_table([("to resume", again)])]


def _scores(output: Path) -> list[tuple[str, str]]:
    """The best and the last value of the validation's loss and scores, or without a validation of the training's."""
    rows = []
    series = read_series(output / "history" / "metrics.csv")
    validated = any(name.startswith("val_") for name in series)
    for name, points in sorted(series.items()):
        if name.startswith("val_") == validated and is_quality(name):
            choose = min if name.endswith("loss") else max
            step, best = choose(points, key=lambda point: point[1])
            rows.append((name, f"best {best:.4f} at step {step:.0f}, last {points[-1][1]:.4f}"))
    return rows


def is_quality(name: str) -> bool:
    """Whether a metric is a loss or a score, rather than a count."""
    return name.endswith("loss") or is_score(name, ())


def _existing(*files: tuple[str, Path]) -> list[tuple[str, str]]:
    return [(name, str(path)) for name, path in files if path.is_file()]


def _command(recipe: str, *words: object) -> str:
    return shlex.join([*_COMMAND, recipe, *map(str, words)])


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    known: Sequence[tuple[str, str]] = list(rows)
    width = max((len(name) for name, _ in known), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in known]
