# SPDX-License-Identifier: Apache-2.0
"""Logging to MLflow that does not block training, loses nothing and creates one run across restarts."""

from __future__ import annotations

import contextlib
import getpass
import logging
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.loggers.address import tracking_address
from lightning_sagemaker.loggers.journal import RUNNING, Journal
from lightning_sagemaker.loggers.journal_logger import JournalLogger

_log = logging.getLogger(__name__)

_SHARE = 0.01
"""Maximum share of a run's time to wait at its end for an unresponsive server."""
_SHORTEST, _LONGEST = 2.0, 60.0
"""Minimum seconds to wait for an unresponsive server, and maximum for a responsive one."""
_AGAIN = 10.0
"""Seconds after which a killed sender is restarted."""


class MLflowLogger(JournalLogger):
    """Logs to MLflow: one run, however often training is interrupted.

    Log rows are appended to a file; a separate process sends them every few seconds. A slow or unresponsive server does
    not block training, and gets the rest when it is back: in this run, after a restart, or with
    ``lightning-sagemaker metrics --send FOLDER``.

    With :class:`~lightning_sagemaker.AutoResume` among the callbacks the run's id, and pending rows, are in the
    checkpoint. Resumed training continues that run. Repeated steps are not logged again: they keep their first values.
    The run ends as FINISHED, FAILED or, if it was interrupted, KILLED.

    Only rank zero logs. Needs ``mlflow-skinny`` or ``mlflow``, and ``sagemaker-mlflow`` for the ARN of a managed
    server.

    Args:
        address: A folder, ``http://HOST:PORT``, or an ARN. A user and password in it are moved to MLflow's own
            variables (``MLFLOW_TRACKING_USERNAME``, ``MLFLOW_TRACKING_PASSWORD``), and nowhere else.
        experiment: Experiment of the run; created if it does not exist.
        name: Name of the run; in a training job the job's name, elsewhere MLflow's choice.
        save_dir: Folder of the file. Default: in a job the output folder, elsewhere ``mlflow_journal``.
        resume: Resume the run whose file is in ``save_dir``, unless a checkpoint identifies one. In a training job a
            restart always resumes the job's run.
        run_id: Id of an MLflow run to resume.
        tags: Tags of the run.

    Raises:
        TrackingError: If ``address`` is unusable, or the client is not installed.

    """

    def __init__(
        self,
        address: str = "mlruns",
        experiment: str = "lightning",
        name: str | None = None,
        save_dir: str | Path | None = None,
        resume: bool = False,
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        job = SageMakerJob.from_environment()
        folder = job.output_dir / "mlflow" if job.in_container else Path("mlflow_journal")
        about = {
            "address": tracking_address(address),
            "experiment": experiment,
            "name": job.name if name is None else name,
            "run_id": run_id,
            "tags": {**_source(job), **(tags or {})},
        }
        super().__init__(folder if save_dir is None else Path(save_dir), about, ("address", "experiment"), job, resume)
        self._sender: subprocess.Popen[bytes] | None = None
        self._begin, self._sender_began = time.monotonic(), 0.0

    # Lightning's interface

    @property
    def name(self) -> str:
        """The experiment."""
        return str(self._about["experiment"])

    @property
    def run_id(self) -> str | None:
        """The run's id in MLflow, on rank zero; None until the server has responded."""
        return Journal(self._folder, self._key).progress().run_id or self._about["run_id"]

    @property
    def client(self) -> object:
        """MLflow's own client, for artifacts and other calls; these wait for the server."""
        from mlflow.tracking import MlflowClient

        return MlflowClient(self._about["address"])

    # State in a checkpoint

    def run_state(self) -> dict[str, object]:
        """For a checkpoint: the run's id, and pending rows."""
        journal = Journal(self._folder, self._key)
        written = [] if self._journal is None else journal.unsent()
        return {"key": self._key, "run_id": self.run_id, "address": self._about["address"], "unsent": written}

    def load_run_state(self, state: Mapping[str, Any]) -> None:
        """Resume the run of a checkpoint."""
        if self._journal is not None:
            return
        if state.get("address") != self._about["address"] or self._about["run_id"] is not None:
            return  # another destination: a new run
        self._key, self._about["run_id"] = state["key"], state["run_id"]
        self._carried = list(state["unsent"])

    # The journal and its sender

    def _opened(self, journal: Journal) -> None:
        has_ended = self._sender is not None and self._sender.poll() is not None
        if self._sender is None or (has_ended and time.monotonic() > self._sender_began + _AGAIN):
            self._send(journal)

    def _send(self, journal: Journal) -> None:
        if self._begin == 0.0:  # an ended run is resumed
            journal.append({"status": RUNNING})
            self._begin = time.monotonic()
        command = [sys.executable, "-m", "lightning_sagemaker.loggers.sender", str(self._folder), journal.key]
        self._sender_began = time.monotonic()
        self._sender = subprocess.Popen(
            [*command, str(self._start_id)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _deliver(self) -> None:
        """Wait until all rows are sent, if the server responds."""
        sender, journal, self._sender = self._sender, self._journal, None
        if sender is None or journal is None:
            return
        assert sender.stdin is not None
        sender.stdin.close()
        now = time.monotonic()
        patience, self._begin = max(_SHORTEST, _SHARE * (now - self._begin)), 0.0
        while sender.poll() is None and time.monotonic() - now < _LONGEST:
            if journal.progress().error is not None and time.monotonic() - now > patience:
                break
            time.sleep(0.02)
        if sender.poll() is None:
            sender.kill()
            sender.wait()
        left = sum('"metrics"' in line for line in journal.unsent())
        if left:
            _log.warning(
                "MLflow did not accept %d rows of metrics (%s); they are kept in %s. HINT: send them with"
                " `lightning-sagemaker metrics --send %s`; a resumed run sends them itself.",
                left,
                journal.progress().error or "no response yet",
                journal.path,
                self._folder,
            )


def _source(job: SageMakerJob) -> dict[str, str]:
    tags = {"mlflow.source.name": Path(sys.argv[0]).name, "mlflow.source.type": "JOB" if job.in_container else "LOCAL"}
    with contextlib.suppress(KeyError, OSError):  # a container's user without a name
        tags["mlflow.user"] = getpass.getuser()
    if job.name is not None:
        tags["sagemaker.training_job"] = job.name
    return tags
