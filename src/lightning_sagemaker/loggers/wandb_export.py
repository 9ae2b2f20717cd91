# SPDX-License-Identifier: Apache-2.0
"""Converts a journal to one offline Weights & Biases run, in a separate process: ``wandb sync`` uploads it.

Each step is in the run once, across restarts, with its first values: an exact resume computes the same. W&B itself
would create one run per start, and would reject repeated steps.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_sagemaker.loggers.journal import FINISHED, Journal

_EXIT_CODES = {FINISHED: 0}
"""Status -> exit code of the run; W&B shows a run with another exit code as failed."""


def folder_of(key: str, runs: Path) -> Path:
    """Folder of a journal's offline run, in W&B's naming scheme."""
    return runs / f"offline-run-{key}"


def export(journal: Journal, runs: Path) -> Path:
    """Recreate the offline run in the folder ``runs`` and replace the last one.

    Returns:
        Folder of the offline run.

    Raises:
        Exception: The client's errors.

    """
    os.environ["WANDB_SILENT"] = "true"
    import wandb

    about, steps, params, status = read(journal)
    runs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".wandb-", dir=runs) as scratch:
        run = wandb.init(
            mode="offline",
            dir=scratch,
            id=journal.key,
            resume="allow",
            project=about["project"],
            name=about["name"],
            tags=about["tags"],
            config=params,
            # Record nothing of this machine: no system metrics, source, git repository or console output.
            settings=wandb.Settings(
                console="off", save_code=False, disable_git=True, x_disable_meta=True, x_disable_stats=True
            ),
        )
        for step in sorted(steps):
            run.log(steps[step], step=step)
        run.finish(exit_code=_EXIT_CODES.get(status or "", 1))
        made = next((Path(scratch) / "wandb").glob("offline-run-*"))
        place = folder_of(journal.key, runs)
        shutil.rmtree(place, ignore_errors=True)
        made.rename(place)
    return place


def read(journal: Journal) -> tuple[dict[str, object], dict[int, dict[str, float]], dict[str, object], str | None]:
    """The run's destination, values by step, parameters, and final status; None while it is running."""
    about: dict[str, Any] = {}
    steps: dict[int, dict[str, float]] = {}
    params: dict[str, object] = {}
    status: str | None = None
    for row, _ in journal.rows():
        about = about or row.get("about", {})
        params = {**row.get("params", {}), **params}
        status = None if "start" in row else row.get("status", status)
        if "metrics" in row:
            steps[row["step"]] = {**row["metrics"], **steps.get(row["step"], {})}
    return about, steps, params, status


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m lightning_sagemaker.loggers.wandb_export FOLDER KEY RUNS``."""
    folder, key, runs = sys.argv[1:] if arguments is None else arguments
    # If the process group is stopped, the training process decides when everything is logged.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    journal = Journal(Path(folder), key)
    with journal.alone():
        export(journal, Path(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
