# SPDX-License-Identifier: Apache-2.0
"""Sends a journal to MLflow, in a process of its own beside the training, which waits for nothing.

Delivery is repeated until it is known to have succeeded, and nothing is logged twice:

* What may have arrived although no answer came is looked up before it is sent again.
* Steps that a start repeats, because it went on from an earlier checkpoint, keep the values of the first time: MLflow cannot
  replace a value, and a run that goes on exactly computes the same.

A training that ended without a word, as by SIGKILL, leaves a run with the status KILLED.
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
"""Seconds between two looks at the journal."""
_PACE = 2.0
"""Seconds between two requests with values, unless the training has ended."""
_LONGEST_PAUSE = 30.0
"""Seconds between two tries at a server that does not answer."""
_LAST_TRIES = 20.0
"""Seconds for which values are still sent when the training was killed."""
_REQUEST_SECONDS = "20"
_MOST_ROWS = 2000
"""In one go; what is sent is written down after each."""


class Delivery:
    """Brings one journal to MLflow.

    Args:
        journal: With ``about`` as its first row.
        start: The id of a start, to leave later ones alone; None for all.

    """

    def __init__(self, journal: Journal, start: str | None = None) -> None:
        self.journal, self._until = journal, start
        self.progress = journal.progress()
        self._store: MLflowStore | None = None
        self._status: str | None = None  # the last in the journal
        self._is_new = self._logged = False  # whether the run had nothing when this start began; whether it has now
        self._uncertain = True  # an earlier sender may have been killed after it sent, before it wrote that down
        self._own: dict[str, set[tuple[int, int]]] = {}
        self._earlier: dict[str, set[int]] = {}
        self._start: str | None = None

    def send(self) -> bool:
        """Send some of what is there; whether there was anything. Raises whatever the client does."""
        if self._store is None:
            self._connect()
        begin, end = self.progress.sent, self.progress.sent
        points: list[Point] = []
        params: dict[str, object] = {}
        status: str | None = None
        for count, (row, after) in enumerate(self.journal.rows(begin)):
            ends = "start" in row or "status" in row  # of a start; what follows is not mixed with what was before
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
            self._logged = True  # even if no answer comes
            store.log(run_id, new)
        if status is not None:
            store.set_status(run_id, status)
            self._status = status
        self._uncertain = False

    def failed(self, error: BaseException) -> None:
        """Note why; what was sent may have arrived all the same."""
        self._uncertain = True
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        self._note(error=f"{type(error).__name__}: {first[:300]}")

    def end(self) -> None:
        """All is sent. A run that has ended without a word was killed."""
        run_id = self.progress.run_id
        if self._status != RUNNING or self._store is None or run_id is None:
            return
        if not any(self._is_later(row) for row, _ in self.journal.rows(self.progress.sent)):
            self._store.set_status(run_id, KILLED)

    def _is_later(self, row: dict[str, Any]) -> bool:
        """Whether a row begins a start after the one that is sent here."""
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
        """Rows from here on are of a new start; values that are there are those of earlier ones."""
        self._start = row["start"]
        self._own, self._earlier = {}, {}
        self._is_new = self._is_new and not self._logged

    def _remember(self, points: list[Point]) -> None:
        """Points of this start, until it is known which are of earlier ones."""
        if not self._is_new:
            for point in points:
                if point.name not in self._earlier:
                    self._own.setdefault(point.name, set()).add((point.step, point.milliseconds))

    def _new(self, points: list[Point], store: MLflowStore, run_id: str) -> list[Point]:
        """Those that are not there yet."""
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
    """The process that writes the journal; its end of our standard input is closed when it ends, in whatever way."""

    def __init__(self) -> None:
        self._parent, self._closed = os.getppid(), threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdin.buffer.read()
        self._closed.set()

    def has_ended(self, seconds: float) -> bool:
        """Whether it has, within so many seconds; forked children of it may still hold what it has closed."""
        until = time.monotonic() + seconds
        while not (ended := self._closed.is_set() or os.getppid() != self._parent):
            left = until - time.monotonic()
            if left <= 0:
                break
            self._closed.wait(min(left, _POLL))
        return ended


def follow(delivery: Delivery, training: _Training) -> None:
    """Send until the training has ended and all is sent, or the server does not answer then."""
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
        except Exception as error:  # whatever a client, a proxy or a disk may say: it is tried again
            delivery.failed(error)
            if time.monotonic() >= until:
                return
            if training.has_ended(pause):
                time.sleep(min(pause, 2.0))
            pause = min(2 * pause, _LONGEST_PAUSE)


def send_all(folder: Path) -> list[tuple[Journal, str | None]]:
    """Send what lies in a folder, once; each journal, and why it could not be sent."""
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
    """The client waits for minutes by itself; here it is asked again later."""
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
    # Of a group of processes that is stopped, the training says when all is logged.
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
