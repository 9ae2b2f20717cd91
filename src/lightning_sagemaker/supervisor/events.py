# SPDX-License-Identifier: Apache-2.0
"""What the coordinator notes of a job, for :mod:`.goodput`: one line of JSON for each event."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

FILE = "recovery.jsonl"
"""Name of the file in a job's output folder."""


class Events:
    """A file that grows; a job that is started again goes on in it.

    Args:
        path: Its folder is made.

    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")

    def note(self, event: str, **values: Any) -> None:
        """Write a line, with the time in seconds since 1970. A disk that is full ends the notes, not the job."""
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
    """In the place of :meth:`Events.note`, where there is no file."""
