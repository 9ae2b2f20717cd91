# SPDX-License-Identifier: Apache-2.0
"""The output stream of a simulated job, which continues if the stream is closed or its reader exits."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO, cast

_STANDARD = 2
"""Highest file descriptor of a standard stream."""


def lasting(stream: TextIO | None) -> TextIO:
    """A stream that never fails; what can no longer be written to ``stream`` is discarded.

    Args:
        stream: Stream to write to; None if Python started with it closed.

    """
    if stream is None:
        _fill_standard_streams()
    return cast(TextIO, _Lasting(stream))


def _fill_standard_streams() -> None:
    """Open the standard streams that are closed, so that pipes of processes do not get their file descriptors."""
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
        """Redirect the stream to /dev/null, since Python would fail again when it flushes the stream at its exit."""
        self._stream = None
        with contextlib.suppress(OSError, ValueError):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
