# SPDX-License-Identifier: Apache-2.0
"""Logging for Weights & Biases without a network: one offline run across restarts."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.loggers.address import TrackingError
from lightning_sagemaker.loggers.journal_logger import JournalLogger
from lightning_sagemaker.loggers.wandb_export import folder_of

_log = logging.getLogger(__name__)

_LONGEST = 120.0
"""Maximum seconds for the export at the end of training."""


class OfflineWandbLogger(JournalLogger):
    """Logs for Weights & Biases: one offline run, however often training is interrupted; ``wandb sync`` uploads it.

    Log rows are appended to a file, and no W&B process runs during training. When training ends, the file is converted
    to an offline run, which has each step once. After a SIGKILL the next start does this, or
    ``lightning-sagemaker metrics --send FOLDER``.

    With :class:`~lightning_sagemaker.AutoResume` among the callbacks resumed training continues the run. Only rank
    zero logs. Needs ``wandb``.

    Args:
        project: W&B project of the run.
        name: Name of the run; in a training job the job's name, elsewhere W&B's choice.
        save_dir: Folder of the file and the offline run. Default: ``wandb_journal``; in a job the file is next
            to the checkpoints, which survive an interruption, and the run in the output folder, which every job keeps.
        resume: Resume the run whose file is in ``save_dir``, unless a checkpoint identifies one. In a training job a
            restart always resumes the job's run.
        tags: Tags of the run.

    Raises:
        TrackingError: If the client is not installed.

    """

    def __init__(
        self,
        project: str = "lightning",
        name: str | None = None,
        save_dir: str | Path | None = None,
        resume: bool = False,
        tags: Sequence[str] = (),
    ) -> None:
        if find_spec("wandb") is None:
            raise TrackingError(
                "Logging for W&B needs the package wandb, which is not installed. HINT: pip install wandb."
            )
        job = SageMakerJob.from_environment()
        folder = job.checkpoint_dir / "wandb" if job.in_container else Path("wandb_journal")
        about: dict[str, object] = {"project": project, "name": job.name if name is None else name, "tags": list(tags)}
        super().__init__(folder if save_dir is None else Path(save_dir), about, ("project",), job, resume)
        self._runs = job.output_dir / "wandb" if job.in_container and save_dir is None else self._folder

    @property
    def name(self) -> str:
        """The project."""
        return str(self._about["project"])

    @property
    def run_folder(self) -> Path:
        """The offline run, for ``wandb sync``; available once training has ended."""
        return folder_of(self._key, self._runs)

    def _deliver(self) -> None:
        """Write the offline run."""
        command = [sys.executable, "-m", "lightning_sagemaker.loggers.wandb_export", str(self._folder), self._key]
        command.append(str(self._runs))
        try:
            made = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST)
            wrong = made.stderr.strip().rpartition("\n")[2] if made.returncode else ""
        except subprocess.TimeoutExpired:
            wrong = f"it took more than {_LONGEST:g} s"
        if wrong:
            _log.warning(
                "No offline run was written from %s (%s). HINT: retry with `lightning-sagemaker metrics --send %s`.",
                self._folder / f"{self._key}.jsonl",
                wrong,
                self._folder,
            )
        else:
            _log.info("W&B: upload this run with `wandb sync %s`.", self.run_folder)

    def run_state(self) -> dict[str, object]:
        """The run's id, for a checkpoint."""
        return {"key": self._key, "project": self._about["project"]}

    def load_run_state(self, state: Mapping[str, object]) -> None:
        """Resume the run of a checkpoint."""
        if self._journal is None and state.get("project") == self._about["project"]:
            self._key = str(state["key"])
