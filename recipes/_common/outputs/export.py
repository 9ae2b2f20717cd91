# SPDX-License-Identifier: Apache-2.0
"""Files next to an exported model: the model card, and the code with which SageMaker serves the model."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_sagemaker.text_files import write_text

_PACKAGES = ("lightning-sagemaker", "torch", "lightning", "transformers")

_SPLITS = ("train", "val", "test")

_SERVING = Path(__file__).with_name("serving")


def write_serving_code(folder: Path, task: str) -> None:
    """Write ``code/inference.py`` and ``code/requirements.txt``, SageMaker's layout of a model archive.

    Args:
        folder: Folder of the model.
        task: Task name of transformers' ``pipeline``, such as ``text-classification``.

    """
    own = _SERVING / f"{task.replace('-', '_')}.py"
    code = own.read_text() if own.is_file() else (_SERVING / "pipeline.py").read_text()
    write_text(folder / "code" / "inference.py", code.replace('"text-classification"', f'"{task}"'))
    # Not torch: the serving image carries its own.
    write_text(folder / "code" / "requirements.txt", "transformers>=4.56\n")


def model_card(recipe: str, facts: Mapping[str, Any], settings: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """The model's README in the form of the Hugging Face hub.

    Args:
        recipe: Name of the recipe.
        facts: Facts about the data.
        settings: Settings of the model.
        metrics: Metrics at the end of training; those of a split start with ``train_``, ``val_`` or ``test_``.

    """
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    commit = _commit()
    parts = [
        "---\nlibrary_name: transformers\ntags:\n- lightning-sagemaker\n---\n",
        f"# Trained by `{recipe}` of lightning-sagemaker\n",
        _table("Data", facts),
        _table("Settings", settings),
        _metrics_table(metrics),
        _table("Training", {name: value for name, value in metrics.items() if _split(name) is None}),
        _table("Made with", versions | ({"commit": commit} if commit else {})),
        "`code/inference.py` serves the model on SageMaker.\n",
    ]
    return "\n".join(parts)


def _table(title: str, entries: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {_cell(value)} |" for name, value in sorted(entries.items())]
    return "\n".join([f"## {title}\n", "| | |", "| --- | --- |", *rows, ""])


def _metrics_table(metrics: Mapping[str, Any]) -> str:
    """A row for each metric, a column for each split that has one."""
    splits = [split for split in _SPLITS if any(_split(name) == split for name in metrics)]
    names = sorted({name.removeprefix(f"{_split(name)}_") for name in metrics if _split(name)})
    rows = [[name, *(_cell(metrics.get(f"{split}_{name}", "")) for split in splits)] for name in names]
    lines = [["metric", *splits], ["---"] * (1 + len(splits)), *rows]
    return "\n".join(["## Metrics\n", *(f"| {' | '.join(line)} |" for line in lines), ""])


def _split(name: str) -> str | None:
    """The split in a metric's name; ``None`` without one."""
    return next((split for split in _SPLITS if name.startswith(f"{split}_")), None)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.replace("|", "\\|").replace("\n", " ")


def _commit() -> str | None:
    """Commit of the working directory's repository, if it is in one."""
    try:
        command = ["git", "rev-parse", "HEAD"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
