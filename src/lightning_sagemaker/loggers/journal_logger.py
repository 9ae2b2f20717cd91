# SPDX-License-Identifier: Apache-2.0
"""Base of loggers that write a journal first: one run across restarts, without lost rows."""

from __future__ import annotations

import logging
import sys
import uuid
from abc import abstractmethod
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from time import time
from typing import Any

from lightning_sagemaker._lightning import Logger, rank_zero_only
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.loggers.journal import FAILED, FINISHED, KILLED, Journal, Progress, journals

_log = logging.getLogger(__name__)


class JournalLogger(Logger):
    """Appends log rows to a file, which subclasses process. Only rank zero logs.

    With :class:`~lightning_sagemaker.AutoResume` among the callbacks the run's key is in the checkpoint, so that a
    resumed training run continues the logged run.

    Args:
        folder: Folder of the journal.
        about: Destination of the rows, written as the first row.
        place: The keys of ``about`` that identify the destination: a journal with other values belongs to another run.
        job: The job; in a training job its name is the run's key.
        resume: Continue the newest journal for this destination in ``folder``.

    """

    def __init__(
        self, folder: Path, about: dict[str, Any], place: tuple[str, ...], job: SageMakerJob, resume: bool
    ) -> None:
        super().__init__()
        self._folder, self._about, self._place = folder, about, place
        self._key = (job.name if job.in_container else None) or self._found(resume) or uuid.uuid4().hex
        self._journal: Journal | None = None
        self._start_id: str | None = None
        self._waiting: list[dict[str, object]] = []
        self._carried: list[str] = []
        self._said_full = False

    @property
    def version(self) -> str:
        """The run's name in this package, which stays the same across restarts."""
        return self._key

    @property
    def save_dir(self) -> str:
        """Folder of the journal."""
        return str(self._folder)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, object] | Namespace, *args: object, **kwargs: object) -> None:
        """Log parameters; the first value of each is kept."""
        values = vars(params) if isinstance(params, Namespace) else dict(params)
        self._write({"params": dict(_flat(values))}, opens=False)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a row."""
        values = {name: float(value) for name, value in metrics.items() if not isinstance(value, str)}
        if values:
            self._write({"t": int(time() * 1000), "step": int(step or 0), "metrics": values})

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run, and deliver its rows."""
        ended = FINISHED if status in ("success", "finished") else _why_it_ended()
        if self._journal is None and (ended == FINISHED or not self._waiting):
            return  # nothing was logged
        self._write({"status": ended})
        self._deliver()

    def _opened(self, journal: Journal) -> None:
        """Called before each row is written; does nothing here."""

    @abstractmethod
    def _deliver(self) -> None:
        """Deliver the rows of a run that has ended, as far as that is possible in a limited time."""

    def _found(self, resume: bool) -> str | None:
        same = [one for one in journals(self._folder) if self._is_mine(one)] if resume else []
        return same[-1].key if same else None

    def _is_mine(self, journal: Journal) -> bool:
        about = journal.about or {}
        return all(about.get(name) == self._about[name] for name in self._place)

    def _write(self, row: dict[str, object], opens: bool = True) -> None:
        self._waiting.append(row)
        if self._journal is None and not opens:
            return
        try:
            journal = self._open()
            self._opened(journal)
            journal.append(*self._waiting)
            self._waiting = []
        except OSError as error:
            if not self._said_full:
                self._said_full = True
                _log.warning(
                    "%s cannot be written (%s); rows are kept in memory. HINT: free disk space.", self._folder, error
                )

    def _open(self) -> Journal:
        if self._journal is None:
            journal = Journal(self._folder, self._key)
            if journal.about is not None and not self._is_mine(journal):  # another destination: a new run
                self._key = uuid.uuid4().hex
                journal = Journal(self._folder, self._key)
            if journal.about is None:
                journal.append({"about": self._about})
                # On another machine than before, without the file: the checkpoint has the unsent rows.
                journal.append_lines([line for line in self._carried if not line.startswith('{"about"')])
                journal.note(Progress(run_id=self._about.get("run_id")))
            self._start_id = uuid.uuid4().hex
            journal.append({"start": self._start_id})
            self._journal = journal
        return self._journal


def _why_it_ended() -> str:
    """The run's final status, by the exception that Lightning handles: KILLED after a signal, FAILED after an error."""
    return KILLED if isinstance(sys.exc_info()[1], (KeyboardInterrupt, SystemExit)) else FAILED


def _flat(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{name}/")
        else:
            plain = value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
            rows.append((f"{prefix}{name}", plain))
    return rows
