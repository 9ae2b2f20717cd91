# SPDX-License-Identifier: Apache-2.0
"""Logging to MLflow that costs the training nothing, loses nothing and makes one run of all starts."""

from __future__ import annotations

import contextlib
import getpass
import logging
import subprocess
import sys
import time
import uuid
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.loggers.address import tracking_address
from lightning_sagemaker.loggers.journal import FAILED, FINISHED, KILLED, RUNNING, Journal, Progress, journals

_log = logging.getLogger(__name__)

_SHARE = 0.01
"""Of the time of a run, which waiting at its end for a server that does not answer may take."""
_SHORTEST, _LONGEST = 2.0, 60.0
"""Seconds: for a server that does not answer, at least; for one that does, at most."""
_AGAIN = 10.0
"""Seconds after which a sender that was ended from outside is started again."""


class MLflowLogger(Logger):
    """Logs to MLflow: one run there, however often it was interrupted here.

    What is logged is appended to a file; a process beside the training sends it every few seconds. A server that is slow or
    does not answer costs nothing, and gets the rest when it is back: in this start, in the next, or by ``lightning-sagemaker
    metrics --send FOLDER``.

    With :class:`~lightning_sagemaker.AutoResume` among the callbacks the run's id, and what has not been sent, are in the
    checkpoint. A resumed training goes on with that run. Steps that it repeats are not logged again: they keep the values of
    the first time. The run ends as FINISHED, FAILED or, if it was interrupted, KILLED.

    Only rank zero logs. Needs ``mlflow-skinny`` or ``mlflow``, and ``sagemaker-mlflow`` for the ARN of a managed server.

    Args:
        address: A folder, ``http://HOST:PORT``, or an ARN. A user and password in it are kept in MLflow's own variables
            (``MLFLOW_TRACKING_USERNAME``, ``MLFLOW_TRACKING_PASSWORD``), and nowhere else.
        experiment: In which the run is; it is made if it does not exist.
        name: Name of the run; in a training job the job's name, elsewhere MLflow's choice.
        save_dir: For the file. Default: in a job the output folder, elsewhere ``mlflow_journal``.
        resume: Go on with the run whose file is in ``save_dir``, if no checkpoint says which. In a training job a restart
            goes on with the job's run in any case.
        run_id: Identifier of a run of MLflow to resume.
        tags: Tags of the run.

    Raises:
        TrackingError: If nothing can be logged at ``address``, or the client is not installed.

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
        super().__init__()
        job = SageMakerJob.from_environment()
        folder = job.output_dir / "mlflow" if job.in_container else Path("mlflow_journal")
        self._folder = folder if save_dir is None else Path(save_dir)
        self._about: dict[str, Any] = {
            "address": tracking_address(address),
            "experiment": experiment,
            "name": job.name if name is None else name,
            "run_id": run_id,
            "tags": {**_source(job), **(tags or {})},
        }
        self._key = (job.name if job.in_container else None) or self._found(resume) or uuid.uuid4().hex
        self._journal: Journal | None = None
        self._sender: subprocess.Popen[bytes] | None = None
        self._start_id: str | None = None
        self._waiting: list[dict[str, Any]] = []
        self._carried: list[str] = []
        self._begin, self._sender_began = time.monotonic(), 0.0
        self._said_full = False

    def _found(self, resume: bool) -> str | None:
        same = [one for one in journals(self._folder) if self._is_mine(one)] if resume else []
        return same[-1].key if same else None

    def _is_mine(self, journal: Journal) -> bool:
        about = journal.about or {}
        return all(about.get(name) == self._about[name] for name in ("address", "experiment"))

    # What Lightning asks for

    @property
    def name(self) -> str:
        """The experiment."""
        return str(self._about["experiment"])

    @property
    def version(self) -> str:
        """The run's name in this package, which does not change."""
        return self._key

    @property
    def save_dir(self) -> str:
        """Where the file is."""
        return str(self._folder)

    @property
    def run_id(self) -> str | None:
        """The run's id in MLflow; None before the server was reached. On rank zero."""
        return Journal(self._folder, self._key).progress().run_id or self._about["run_id"]

    @property
    def client(self) -> Any:
        """MLflow's own client, for artefacts and whatever else; its calls wait for the server."""
        from mlflow.tracking import MlflowClient

        return MlflowClient(self._about["address"])

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Log parameters; MLflow keeps the first value of each."""
        values = vars(params) if isinstance(params, Namespace) else dict(params)
        self._write({"params": dict(_flat(values))}, opens=False)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a row."""
        values = {name: float(value) for name, value in metrics.items() if not isinstance(value, str)}
        if values:
            self._write({"t": int(time.time() * 1000), "step": int(step or 0), "metrics": values})

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """The run has ended; wait until all has arrived, if the server answers."""
        ended = FINISHED if status in ("success", "finished") else _why_it_ended()
        if self._journal is None and (ended == FINISHED or not self._waiting):
            return  # nothing was logged
        self._write({"status": ended})
        self._wait()

    # What a checkpoint holds

    def run_state(self) -> dict[str, Any]:
        """For a checkpoint: which run it is, and what has not arrived there."""
        journal = Journal(self._folder, self._key)
        written = [] if self._journal is None else journal.unsent()
        return {"key": self._key, "run_id": self.run_id, "address": self._about["address"], "unsent": written}

    def load_run_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the run of a checkpoint."""
        if self._journal is not None:
            return
        if state["address"] != self._about["address"] or self._about["run_id"] is not None:
            return  # another place: a run of its own
        self._key, self._about["run_id"] = state["key"], state["run_id"]
        self._carried = list(state["unsent"])

    # The file and its sender

    def _write(self, row: dict[str, Any], opens: bool = True) -> None:
        self._waiting.append(row)
        if self._journal is None and not opens:
            return
        try:
            journal = self._open()
            if self._sender is None or (
                self._sender.poll() is not None and time.monotonic() > self._sender_began + _AGAIN
            ):
                self._send(journal)
            journal.append(*self._waiting)
            self._waiting = []
        except OSError as error:
            if not self._said_full:
                self._said_full = True
                _log.warning("%s cannot be written (%s); rows wait in memory. HINT: make room.", self._folder, error)

    def _open(self) -> Journal:
        if self._journal is None:
            journal = Journal(self._folder, self._key)
            if journal.about is not None and not self._is_mine(journal):  # another place: a run of its own
                self._key = uuid.uuid4().hex
                journal = Journal(self._folder, self._key)
            if journal.about is None:
                journal.append({"about": self._about})
                # On another machine than before, where the file was: a checkpoint brings what was not sent.
                journal.append_lines([line for line in self._carried if not line.startswith('{"about"')])
                journal.note(Progress(run_id=self._about["run_id"]))
            self._start_id = uuid.uuid4().hex
            journal.append({"start": self._start_id})
            self._journal = journal
        return self._journal

    def _send(self, journal: Journal) -> None:
        if self._begin == 0.0:  # it had ended, and goes on
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

    def _wait(self) -> None:
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
                "MLflow has not taken %d rows of metrics (%s); they are in %s. HINT: `lightning-sagemaker metrics --send %s`"
                " sends them; a training that is resumed does so by itself.",
                left,
                journal.progress().error or "no answer yet",
                journal.path,
                self._folder,
            )


def _why_it_ended() -> str:
    """Called by Lightning while it handles what ended the training: a stop from outside, or an error."""
    return KILLED if isinstance(sys.exc_info()[1], (KeyboardInterrupt, SystemExit)) else FAILED


def _source(job: SageMakerJob) -> dict[str, str]:
    tags = {"mlflow.source.name": Path(sys.argv[0]).name, "mlflow.source.type": "JOB" if job.in_container else "LOCAL"}
    with contextlib.suppress(KeyError, OSError):  # a container's user without a name
        tags["mlflow.user"] = getpass.getuser()
    if job.name is not None:
        tags["sagemaker.training_job"] = job.name
    return tags


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{name}/")
        else:
            plain = value if isinstance(value, (str, int, bool)) or value is None else str(value)
            rows.append((f"{prefix}{name}", plain))
    return rows
