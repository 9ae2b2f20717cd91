# SPDX-License-Identifier: Apache-2.0
"""Where a simulated job writes its lines; if it is closed, or loses its reader, the job continues."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO, cast

_STANDARD = 2
"""The highest number of a standard stream."""


def lasting(stream: TextIO | None) -> TextIO:
    """A stream that takes lines whatever becomes of ``stream``; what can no longer be written is lost.

    Args:
        stream: None where Python found it closed.

    """
    if stream is None:
        _fill_standard_streams()
    return cast(TextIO, _Lasting(stream))


def _fill_standard_streams() -> None:
    """Else pipes of processes take their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STANDARD:
        os.set_inheritable(number, True)
    os.close(number)


class _Lasting:
    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._lose(self._stream)
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._lose(self._stream)

    def _lose(self, stream: TextIO) -> None:
        """Python would fail once more at its end, when it writes what is left."""
        self._stream = None
        with contextlib.suppress(OSError, ValueError):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
