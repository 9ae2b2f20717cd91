# SPDX-License-Identifier: Apache-2.0
"""The default loggers of a run, and those of MLflow and W&B."""

from __future__ import annotations

from collections.abc import Mapping

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning_utilities.core.imports import RequirementCache

from lightning_sagemaker import MetricLogger, MLflowLogger, OfflineWandbLogger, SageMakerJob
from lightning_sagemaker.recipes._common.outputs.folders import RunFolders
from lightning_sagemaker.recipes._common.outputs.history import HistoryLogger

_TENSORBOARD = RequirementCache("tensorboard")


def loggers(folders: RunFolders, stage: str, lines: bool) -> list[Logger]:
    """The default loggers of a run.

    Args:
        folders: Folders of the run.
        stage: ``fit``, ``validate``, ``test`` or ``predict``.
        lines: Whether to print a line for each logged step, as without a progress bar.

    """
    chosen: list[Logger] = []
    if stage == "fit":  # other stages write metrics-STAGE.json, and must not overwrite training's history
        chosen += [TensorBoardLogger(folders.output, "tensorboard", "")] if _TENSORBOARD else []
        chosen.append(HistoryLogger(folders.output))
    if lines:
        chosen.append(MetricLogger())
    return chosen


TRACKERS = ("mlflow", "wandb")
"""Options whose values say where to log."""


def trackers(
    places: Mapping[str, str], recipe: str, folders: RunFolders, job: SageMakerJob, goes_on: bool
) -> list[Logger]:
    """The loggers of the trackers that are set; all starts of a training are one run in each tracker.

    Args:
        places: ``mlflow``: folder, server or ARN; ``wandb``: project.
        recipe: Name of the recipe, used as MLflow's experiment.
        folders: Folders of the run.
        job: The job as read from the environment.
        goes_on: Whether to resume the run of an earlier start.

    """
    name = None if job.in_container else folders.output.resolve().parent.name
    chosen: list[Logger] = []
    if "mlflow" in places:
        chosen.append(MLflowLogger(places["mlflow"], recipe, name, save_dir=folders.output / "mlflow", resume=goes_on))
    if "wandb" in places:  # in a job next to the checkpoints: the output folder does not survive an interruption
        place = None if job.in_container else folders.output / "wandb"
        chosen.append(OfflineWandbLogger(places["wandb"], name, save_dir=place, resume=goes_on))
    return chosen
