# SPDX-License-Identifier: Apache-2.0
"""Sends a journal to MLflow, in a separate process, without blocking training.

Delivery is retried until it is confirmed, and nothing is logged twice:

* Rows that may have arrived without a response are looked up before they are sent again.
* Steps that are repeated after resuming from an earlier checkpoint keep their first values: MLflow cannot replace a
  value, and an exact resume computes the same.

A run that ended without a status, such as by SIGKILL, gets the status KILLED.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_sagemaker.loggers.journal import KILLED, RUNNING, Journal, Progress, journals
from lightning_sagemaker.loggers.mlflow_store import MLflowStore, Point

_POLL = 0.5
"""Polling interval of the journal in seconds."""
_PACE = 2.0
"""Seconds between two requests with values, unless the training has ended."""
_LONGEST_PAUSE = 30.0
"""Seconds between retries for an unresponsive server."""
_LAST_TRIES = 20.0
"""Seconds to keep sending after training was killed."""
_REQUEST_SECONDS = "20"
_MOST_ROWS = 2000
"""Rows per batch; progress is recorded after each."""


class Delivery:
    """Delivers one journal to MLflow.

    Args:
        journal: Journal with ``about`` as its first row.
        start: The id of a start, to exclude later ones; None for all.

    """

    def __init__(self, journal: Journal, start: str | None = None) -> None:
        self.journal, self._until = journal, start
        self.progress = journal.progress()
        self._store: MLflowStore | None = None
        self._status: str | None = None  # the journal's last status
        self._is_new = False  # whether the run was empty when this start began
        self._logged = False  # whether anything was logged
        self._uncertain = True  # an earlier sender may have been killed between sending and recording its progress
        self._own: dict[str, set[tuple[int, int]]] = {}
        self._earlier: dict[str, set[int]] = {}
        self._start: str | None = None

    def send(self) -> bool:
        """Send some pending rows; returns whether there were any. Raises the client's errors."""
        if self._store is None:
            self._connect()
        begin, end = self.progress.sent, self.progress.sent
        points: list[Point] = []
        params: dict[str, object] = {}
        status: str | None = None
        for count, (row, after) in enumerate(self.journal.rows(begin)):
            ends = "start" in row or "status" in row  # a start ends here; batches do not span starts
            if count >= _MOST_ROWS or (ends and points) or self._is_later(row):
                break
            end = after
            if "start" in row:
                self._begin(row)
                status = RUNNING
            params |= row.get("params", {})
            status = row.get("status", status)
            points += _points(row)
        if end == begin:
            return False
        self._log(params, points, status)
        self._note(sent=end, error=None)
        return True

    def _log(self, params: dict[str, object], points: list[Point], status: str | None) -> None:
        store, run_id = self._store, self.progress.run_id
        assert store is not None
        assert run_id is not None
        if params:
            store.log_params(run_id, params)
        if points and (new := self._new(points, store, run_id)):
            self._logged = True  # even if no response arrives
            store.log(run_id, new)
        if status is not None:
            store.set_status(run_id, status)
            self._status = status
        self._uncertain = False

    def failed(self, error: BaseException) -> None:
        """Record an error; the rows may have been logged nevertheless."""
        self._uncertain = True
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        self._note(error=f"{type(error).__name__}: {first[:300]}")

    def end(self) -> None:
        """Set the final status, as everything is sent: KILLED if the journal has none."""
        run_id = self.progress.run_id
        if self._status != RUNNING or self._store is None or run_id is None:
            return
        if not any(self._is_later(row) for row, _ in self.journal.rows(self.progress.sent)):
            self._store.set_status(run_id, KILLED)

    def _is_later(self, row: dict[str, Any]) -> bool:
        """Whether a row begins a later start than the one being sent."""
        return "start" in row and self._until is not None and self._start == self._until != row["start"]

    def _connect(self) -> None:
        about = self.journal.about
        assert about is not None
        store = MLflowStore(about["address"])
        run_id = self.progress.run_id or about.get("run_id") or store.find(about["experiment"], self.journal.key)
        if run_id is None:
            run_id = store.create(about["experiment"], self.journal.key, about.get("name"), about.get("tags", {}))
            self._is_new, self._uncertain = True, False
        for row, after in self.journal.rows():
            if after > self.progress.sent:
                break
            if "start" in row:
                self._begin(row)
                self._status = RUNNING
            self._status = row.get("status", self._status)
            self._remember(_points(row))
        self._note(run_id=run_id, error=None)
        self._store = store

    def _begin(self, row: dict[str, Any]) -> None:
        """Begin a new start: values that exist now were logged by earlier ones."""
        self._start = row["start"]
        self._own, self._earlier = {}, {}
        self._is_new = self._is_new and not self._logged

    def _remember(self, points: list[Point]) -> None:
        """Remember points of this start, to distinguish them from those that earlier starts have logged."""
        if not self._is_new:
            for point in points:
                if point.name not in self._earlier:
                    self._own.setdefault(point.name, set()).add((point.step, point.milliseconds))

    def _new(self, points: list[Point], store: MLflowStore, run_id: str) -> list[Point]:
        """Points that are not logged yet."""
        self._remember(points)
        names = {point.name for point in points}
        unknown = set() if self._is_new else names - self._earlier.keys()
        there = {name: store.history(run_id, name) for name in sorted(names if self._uncertain else unknown)}
        for name in unknown:
            own = self._own.pop(name)
            self._earlier[name] = {step for step, _ in there[name] - own}
        return [
            point
            for point in points
            if point.step not in self._earlier.get(point.name, ())
            and (point.step, point.milliseconds) not in there.get(point.name, ())
        ]

    def _note(self, **changes: object) -> None:
        self.progress = Progress(**{**vars(self.progress), **changes})
        self.journal.note(self.progress)


def _points(row: dict[str, Any]) -> list[Point]:
    return [Point(name, value, row["t"], row["step"]) for name, value in row.get("metrics", {}).items()]


class _Training:
    """The training process, detected by this process's standard input: its end is closed when training exits in any way."""

    def __init__(self) -> None:
        self._parent, self._closed = os.getppid(), threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdin.buffer.read()
        self._closed.set()

    def has_ended(self, seconds: float) -> bool:
        """Whether it has exited, within this many seconds; its forked children may still hold the pipe."""
        until = time.monotonic() + seconds
        while not (ended := self._closed.is_set() or os.getppid() != self._parent):
            left = until - time.monotonic()
            if left <= 0:
                break
            self._closed.wait(min(left, _POLL))
        return ended


def follow(delivery: Delivery, training: _Training) -> None:
    """Send until training has ended, and then until everything is sent or the server does not respond."""
    pause, until = 1.0, float("inf")
    while True:
        ended = training.has_ended(0.0)
        if ended:
            until = min(until, time.monotonic() + _LAST_TRIES)
        try:
            while delivery.send():
                pause = 1.0
                training.has_ended(_PACE)
            if ended:
                delivery.end()
                return
            training.has_ended(_POLL)
        except Exception as error:  # a client, a proxy or a disk may raise anything; it is retried
            delivery.failed(error)
            if time.monotonic() >= until:
                return
            if training.has_ended(pause):
                time.sleep(min(pause, 2.0))
            pause = min(2 * pause, _LONGEST_PAUSE)


def send_all(folder: Path) -> list[tuple[Journal, str | None]]:
    """Send the journals in a folder once; returns each journal, and why it could not be sent."""
    _be_brief()
    outcome: list[tuple[Journal, str | None]] = []
    for journal in journals(folder):
        with journal.alone(0.0) as mine:
            if not mine or journal.about is None or journal.progress().sent >= journal.size:
                continue
            delivery = Delivery(journal)
            try:
                while delivery.send():
                    pass
                delivery.end()
            except Exception as error:
                delivery.failed(error)
        outcome.append((journal, delivery.progress.error))
    return outcome


def _be_brief() -> None:
    """Limit the client's own retries, which take minutes; calls are retried here."""
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", _REQUEST_SECONDS)
    os.environ.setdefault("MLFLOW_ENABLE_ASYNC_LOGGING", "false")


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m lightning_sagemaker.loggers.sender FOLDER KEY START``, with a standard input that the training closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("key")
    parser.add_argument("start")
    given = parser.parse_args(arguments)
    # If the process group is stopped, the training process decides when everything is logged.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _be_brief()
    training = _Training()
    journal = Journal(given.folder, given.key)
    with journal.alone():
        follow(Delivery(journal, given.start), training)
    return 0


if __name__ == "__main__":
    sys.exit(main())
