# SPDX-License-Identifier: Apache-2.0
"""Output folders of a run."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from lightning_sagemaker import SageMakerJob
from lightning_sagemaker.rank import is_rank_zero

LATEST = "latest"
"""Symbolic link to the folder of the last training run, next to the folders of all runs."""


_SETTINGS = ("config.yaml", "hparams.yaml", "events.out.tfevents", "data.html")
"""Prefixes of the names of files that are written before training starts."""


@dataclass(frozen=True)
class RunFolders:
    """The three folders of a run: in a training job SageMaker's, elsewhere in a new folder for each run.

    Args:
        model: Folder of the final model, which SageMaker uploads as the model artifact.
        output: Folder of metrics, logs and everything else.
        checkpoints: Folder of the checkpoints, from which a restarted job resumes.
        root: Folder of this run below ``runs/NAME``, if this class has created it.

    """

    model: Path
    output: Path
    checkpoints: Path
    root: Path | None = None

    @classmethod
    def of(
        cls, job: SageMakerJob, recipe: str, run_dir: str | None = None, stage: str = "fit", resume: bool = False
    ) -> RunFolders:
        """The folders of ``recipe`` in ``job``.

        Args:
            job: Job whose folders are used inside a container.
            recipe: Name of the recipe.
            run_dir: Folder to use instead, in a container too.
            stage: Stage of the run: ``fit``, ``validate``, ``test`` or ``predict``.
            resume: Outside of a job, use the folder of the last training, if there is one, instead of a new one.

        """
        if run_dir is not None:
            return cls._in(Path(run_dir))
        if job.in_container:
            return cls(job.model_dir, job.output_dir, job.checkpoint_dir)
        runs = Path("runs") / recipe
        latest = runs / LATEST
        if resume and latest.is_dir():
            return cls._in(runs / latest.resolve().name)
        root = _new_folder(runs, stage, create=is_rank_zero())
        return cls._in(root, root)

    @classmethod
    def _in(cls, folder: Path, root: Path | None = None) -> RunFolders:
        return cls(folder / "model", folder / "output", folder / "checkpoints", root)

    def mark_latest(self) -> None:
        """Point the symbolic link ``latest`` to this run, atomically; called on rank zero."""
        if self.root is None:
            return
        link = self.root.with_name(f".{LATEST}-{os.getpid()}")
        with contextlib.suppress(OSError):  # a file system without symbolic links
            link.unlink(missing_ok=True)
            link.symlink_to(self.root.name)
            link.replace(self.root.with_name(LATEST))

    def discard_unused(self) -> None:
        """Remove the folder that was created for this run if it has only settings, as when the data is refused."""
        if self.root is not None and self.root.is_dir():
            files = (path.name for path in self.root.rglob("*") if path.is_file())
            if all(name.startswith(_SETTINGS) for name in files):
                shutil.rmtree(self.root, ignore_errors=True)


def _new_folder(runs: Path, stage: str, create: bool) -> Path:
    """A new folder, named by the local time; only rank zero's is created and used."""
    name = time.strftime("%Y%m%d-%H%M%S") + ("" if stage == "fit" else f"-{stage}")
    if create:
        runs.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = runs / (name if number == 1 else f"{name}-{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder
    return runs / name
