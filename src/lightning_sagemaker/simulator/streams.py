# SPDX-License-Identifier: Apache-2.0
"""The output of a host or a rank: lines to the display, all bytes to the log file, and the last lines for a failure."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from lightning_sagemaker.simulator.display import Lines, Source
from lightning_sagemaker.simulator.hints import hint_for

_KEPT_LINES = 400
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_NATIVE_LOG = re.compile(r"^(\[rank\d+\]:)?\[[WIEF]\d{3,} |^$")
"""Lines that torch's C++ code prints after a traceback, when the process exits."""
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""Prefix that torch adds to each line of an uncaught exception."""


@dataclass(frozen=True)
class Failure:
    """The first failure of a job."""

    host: str | None
    """Name of the host; None if a signal or the time limit stopped the job."""
    rank: int | None
    """Global rank; None if a host's launcher failed."""
    returncode: int
    last_lines: tuple[str, ...]
    """Last traceback of the rank or launcher, or its last lines without one."""
    reason: str


class Stream:
    """The output of a rank, of a launcher or of a helper.

    Args:
        source: Origin of the output.
        display: Display for the lines.
        logs: Folder of the log files; None for no log file.

    """

    def __init__(self, source: Source, display: Lines, logs: Path | None) -> None:
        self._source, self._display = source, display
        self.recent: deque[str] = deque(maxlen=_KEPT_LINES)
        self._partial = bytearray()
        self._log = None if logs is None else (logs / source.log_name).open("wb", buffering=0)

    def feed(self, data: bytes) -> None:
        """Process the complete lines of ``data``; buffer the rest until its end arrives."""
        if self._log is not None:
            with contextlib.suppress(OSError):  # a full disk must not end the job
                self._log.write(data)
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._take(self._partial + line)
            self._partial.clear()
        self._partial += rest
        if b"\r" in rest:  # a progress bar may redraw its line for hours
            del self._partial[: self._partial.rstrip(b"\r").rfind(b"\r") + 1]

    def end(self) -> None:
        """Process an incomplete last line, and close the log file."""
        if self._partial:
            self._take(self._partial)
            self._partial.clear()
        if self._log is not None:
            self._log.close()

    def _take(self, line: bytes | bytearray) -> None:
        # A progress bar redraws its line after a carriage return: show what a terminal would show at the end.
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        self.recent.append(text)
        self._display.show(self._source, text)


def last_traceback(lines: list[str]) -> tuple[str, ...]:
    """The last traceback in ``lines``, with the exceptions that it is chained to; without one, the last 20 lines."""
    while lines and _NATIVE_LOG.match(lines[-1]):
        lines.pop()
    starts = [i for i, line in enumerate(lines) if _TRACEBACK in line]
    if not starts:
        return tuple(lines[-20:])
    start = starts.pop()
    while starts and any(mark in line for line in lines[starts[-1] : start] for mark in _CHAINED):
        start = starts.pop()
    return tuple(lines[start:])


def sentence_of(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Only the message, if the error has a ``HINT:`` or is a missing module; else ``lines``, with a hint if there is one.

    Args:
        lines: Result of :func:`last_traceback`.

    """
    plain = [_RANK_PREFIX.sub("", line) for line in lines]
    starts = [i for i, line in enumerate(plain) if _TRACEBACK in line]
    if starts:
        frames = starts[-1] + 1
        while frames < len(plain) and plain[frames].startswith(" "):
            frames += 1
        message = tuple(plain[frames:])
    else:
        message = tuple(plain[-1:])
    if any("HINT:" in line for line in message):
        return message
    hint = hint_for(" ".join(message))
    if hint is None:
        return lines
    return (*(message if message[0].startswith("ModuleNotFoundError") else lines), hint)
