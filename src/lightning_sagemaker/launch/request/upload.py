# SPDX-License-Identifier: Apache-2.0
"""Progress of the upload of source and data: a line that is redrawn on a terminal, else one before and one after."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TextIO

_REDRAWN = 0.2
"""Minimum seconds between two redraws."""


class _Uploads(Protocol):
    upload_data: Callable[..., object]


@contextlib.contextmanager
def shown_upload(session: _Uploads, total: int, output: TextIO | None = None) -> Iterator[None]:
    """Show the progress of what a session of the SDK uploads.

    Args:
        session: Session of the SDK.
        total: Number of bytes to upload, without the SDK's own scripts.
        output: Stream for the progress; ``sys.stderr`` when None.

    """
    progress, original = _Progress(total, output or sys.stderr), session.upload_data

    def upload(*given: object, **named: object) -> object:
        return original(*given, **{"callback": progress.add, **named})

    session.upload_data = upload
    try:
        progress.begin()
        yield
    except BaseException:
        progress.clear()
        raise
    else:
        progress.end()
    finally:
        del session.upload_data  # restores the method of the class


class _Progress:
    def __init__(self, total: int, output: TextIO) -> None:
        self._total, self._output, self._done = total, output, 0
        self._lock, self._drawn = threading.Lock(), 0.0
        self._begin = time.monotonic()

    def add(self, count: int) -> None:
        """Add ``count`` uploaded bytes; called by the threads of the transfer."""
        with self._lock:
            self._done += count
            if self._output.isatty() and time.monotonic() - self._drawn >= _REDRAWN:
                self._drawn = time.monotonic()
                share = min(1.0, self._done / max(1, self._total))
                self._output.write(f"\r\x1b[Kuploading {_mib(self._done)} of {_mib(self._total)} MiB ({share:.0%})")
                self._output.flush()

    def begin(self) -> None:
        if not self._output.isatty():
            self._say(f"uploading {_mib(self._total)} MiB")

    def clear(self) -> None:
        if self._output.isatty():
            self._output.write("\r\x1b[K")

    def end(self) -> None:
        self.clear()
        self._say(f"uploaded {_mib(self._done)} MiB in {time.monotonic() - self._begin:.1f} s")

    def _say(self, text: str) -> None:
        self._output.write(f"lightning-sagemaker: {text}\n")
        self._output.flush()


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f}"
