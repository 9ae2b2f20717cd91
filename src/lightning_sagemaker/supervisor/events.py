# SPDX-License-Identifier: Apache-2.0
"""The coordinator's event log, read by :mod:`.goodput`: one line of JSON per event."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_sagemaker.recovery.protocol_log import log

FILE = "recovery.jsonl"
"""Name of the file in a job's output folder."""


class Events:
    """An append-only file; a restarted job continues it.

    Args:
        path: Path of the file; its folder is created.

    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")

    def note(self, event: str, **values: Any) -> None:
        """Append an event with its time in seconds since 1970. A full disk ends the event log, not the job."""
        if self._file.closed:
            return
        try:
            self._file.write(json.dumps({"time": round(time.time(), 3), "event": event, **values}) + "\n")
            self._file.flush()
        except OSError as error:
            print(f"lightning-sagemaker: {self._file.name} ends here: {error}.", file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):
                self._file.close()


def no_notes(event: str, **values: Any) -> None:
    """Stands in for :meth:`Events.note` if there is no event log."""


def logged(note: Callable[..., None]) -> Callable[..., None]:
    """A callback that records an event and also writes it to the debug log."""

    def note_and_log(event: str, **values: object) -> None:
        log.debug("coordinator: %s %s", event, values)
        note(event, **values)

    return note_and_log
