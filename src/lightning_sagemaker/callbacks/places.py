# SPDX-License-Identifier: Apache-2.0
"""The folder or S3 URI of a Trainer's checkpoints, and the checkpoints in it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker._lightning import ModelCheckpoint
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.job import SageMakerJob

if TYPE_CHECKING:
    from lightning_sagemaker._types import PathLike, Trainer


class RemoteCheckpoints(Protocol):
    """A checkpoint plugin that supports S3 URIs."""

    def names(self, folder: str) -> list[str]:
        """Names of the checkpoints in a folder."""

    def newest(
        self, folder: str, report: Callable[[str], None], fits: int | None = None, weights_only: bool = True
    ) -> tuple[str, int] | None:
        """URI and steps of the newest complete checkpoint, of the fit before which ``fits`` had completed."""

    def remove_checkpoint(self, path: PathLike) -> None:
        """Remove a checkpoint."""


class HasFolder:
    """Mixed into callbacks that write or read checkpoints in one folder.

    Attributes:
        dirpath: What the script has set; None: what :func:`checkpoint_folder` finds.

    """

    dirpath: str | Path | None = None


_FOLDER = "_lightning_sagemaker_checkpoint_folder"
_NAME = re.compile(r"auto-(?:fit=(\d+)-)?step=(\d+)\.ckpt")


def checkpoint_folder(trainer: Trainer, dirpath: str | Path | None) -> str:
    """The folder or S3 URI of a Trainer's checkpoints: ``dirpath``, if it is set.

    A folder that is set for one callback is used by those without one, so that one resumes from what the other saves.

    Callbacks call this in ``setup``, and the first result is kept: a ``ModelCheckpoint`` without a folder sets one of the
    logger's version in its own ``setup``, which the restarted run, with another version, would not find.
    """
    if dirpath is not None:
        return _place(dirpath)
    return str(vars(trainer).setdefault(_FOLDER, _usual_folder(trainer)))


def _usual_folder(trainer: Trainer) -> str:
    for other in callbacks_of(trainer):
        if isinstance(other, HasFolder) and other.dirpath is not None:
            return _place(other.dirpath)
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is not None:
            return _place(callback.dirpath)
    job = job_of(trainer)
    return str(job.checkpoint_dir) if job.in_container else str(Path(trainer.default_root_dir) / "checkpoints")


def _place(dirpath: str | Path) -> str:
    return os.path.expanduser(str(dirpath)).rstrip("/")  # as ModelCheckpoint, which may have the same folder


def job_of(trainer: Trainer) -> SageMakerJob:
    """The job of the Trainer's strategy; with a strategy from another package, the job of this process."""
    job = getattr(trainer.strategy, "job", None)
    return job if isinstance(job, SageMakerJob) else SageMakerJob.from_environment()


def is_remote(folder: str) -> bool:
    """Whether a folder is a URI, not a local path."""
    return "://" in folder


def name_of(step: int, fits: int = 0) -> str:
    """Name of the automatic checkpoint after ``step`` steps, of the fit before which ``fits`` had completed."""
    return f"auto-fit={fits}-step={step}.ckpt" if fits else f"auto-step={step}.ckpt"


def check_keep(keep: int) -> int:
    """Return ``keep``, the number of checkpoints to keep.

    Raises:
        ValueError: If it is less than one.

    """
    if keep < 1:
        raise ValueError(f"keep={keep} was set. HINT: keep the last one at least, keep=1; a large number keeps all.")
    return keep


def outdated(names: Iterable[str], step: int, keep: int, fits: int = 0) -> list[str]:
    """Automatic checkpoints that are no longer needed.

    Args:
        names: Names of everything in the folder.
        step: Step of the newest checkpoint.
        keep: Number of checkpoints to keep.
        fits: Fits that had completed before this one; other fits' checkpoints are kept.

    """
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    found = {int(match[2]): match[0] for match in matches if int(match[1] or 0) == fits}
    past = sorted(number for number in found if number <= step)
    future = found.keys() - set(past)  # damaged, as this run did not resume from them
    return [found[number] for number in (*past[:-keep], *future)]


def names_in(trainer: Trainer | None, folder: str) -> list[str]:
    """Names in a folder of checkpoints; a URI needs a Trainer."""
    if is_remote(folder):
        return remote_io(trainer).names(folder)
    place = Path(folder)
    return [path.name for path in place.iterdir()] if place.is_dir() else []  # not created yet, if asynchronous


def remove(trainer: Trainer | None, path: str) -> None:
    """Remove a checkpoint, a file or a folder. The Trainer's strategies for sharded models cannot."""
    if is_remote(path):
        remote_io(trainer).remove_checkpoint(path)
    elif Path(path).is_dir():
        shutil.rmtree(path)
    else:
        Path(path).unlink(missing_ok=True)


def remote_io(trainer: Trainer | None) -> RemoteCheckpoints:
    """The Trainer's checkpoint plugin, if it supports S3 URIs.

    Raises:
        CheckpointError: If it does not support S3.

    """
    assert trainer is not None
    strategy = trainer.strategy
    io: RemoteCheckpoints = getattr(strategy, "remote_checkpoints", None) or cast(
        "RemoteCheckpoints", strategy.checkpoint_io
    )
    if not hasattr(io, "newest"):
        raise CheckpointError(
            f"checkpoints at a URL were requested, but the Trainer writes them by {type(io).__name__}, which cannot"
            " list them. HINT: pass Trainer(plugins=S3CheckpointIO())."
        )
    return io
