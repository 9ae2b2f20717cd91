# SPDX-License-Identifier: Apache-2.0
"""Display of a simulated job's output: every line, or a digest without repeated warnings and secondary failures."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TextIO

WINDOW = 1.0
"""Seconds for which a warning is held back, to count the ranks that give it too."""

PATIENCE = 5.0
"""Seconds for which an error is held back, until its rank has ended."""

_WARNING = re.compile(r"Warning: |\bWARNING\b|\[W\d{3,} |^\S+\.py:\d+: ")
_ERROR = re.compile(r"Traceback \(most recent call last\)|^(\S+: )?error: ")
_OWN = re.compile(r"^(\[rank\d+\]:)?\s*(\[W\d{3,} [\d:.]+|[\d:.,\-TZ/ ]{8,})")
"""Rank and time, which differ between ranks that give the same warning."""


@dataclass(frozen=True)
class Source:
    """The origin of a line.

    Args:
        host: Name of the host.
        rank: Global rank; None for the host's launcher.

    """

    host: str
    rank: int | None = None

    @property
    def prefix(self) -> str:
        """Prefix of each of its lines."""
        return self.host if self.rank is None else f"{self.host} [{self.rank}]"

    @property
    def log_name(self) -> str:
        """Name of its log file."""
        return f"{self.host}.log" if self.rank is None else f"{self.host}-rank-{self.rank}.log"


class Lines:
    """Shows every line with a prefix.

    Args:
        output: Stream to write to.

    """

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def show(self, source: Source, text: str) -> None:
        """Show one line."""
        self._write(f"{source.prefix} | {text}")

    def say(self, text: str) -> None:
        """Show a message of the simulator."""
        self._write(f"lightning-sagemaker: {text}")

    def _write(self, line: str) -> None:
        self._output.write(f"{line}\n")
        self._output.flush()

    def state(self, host: str, state: str) -> None:
        """Called when the state of a host changes; does nothing here."""

    def fail(self) -> None:
        """Called when a rank or a launcher has failed; later output of other ranks is a consequence."""

    def tick(self) -> None:
        """Called repeatedly while the job runs."""

    def close(self) -> None:
        """Show lines that were held back, and end the display."""


@dataclass
class _Repeat:
    """A warning that several ranks may give, and the ranks that gave it."""

    ranks: set[int] = field(default_factory=set)
    is_shown: bool = False


@dataclass
class _Entry:
    """A line that is held back until a time."""

    text: str
    until: float
    repeat: _Repeat | None = None
    is_error: bool = False


class Digest(Lines):
    """Shows a warning of several ranks once, and after a failure no further output; the report has the failed rank's.

    Args:
        shown: Display of the lines that remain.
        num_ranks: Number of ranks of the job.

    """

    def __init__(self, shown: Lines, num_ranks: int) -> None:
        self._shown, self._num_ranks = shown, num_ranks
        self._waiting: defaultdict[Source, deque[_Entry]] = defaultdict(deque)
        self._repeats: dict[tuple[str, int], _Repeat] = {}
        self._said: Counter[tuple[Source, str]] = Counter()
        self._after_repeat: set[Source] = set()
        self._late = 0
        self._failed = False

    def show(self, source: Source, text: str) -> None:
        """Show one line, at once or after it was held back."""
        if self._failed:
            return
        now = time.monotonic()
        continues = source in self._after_repeat and text.startswith(" ")  # the line of code that Python adds
        self._after_repeat.discard(source)
        if continues:
            return
        if source.rank is not None and self._num_ranks > 1 and _WARNING.search(text):
            self._warn(source, text, now)
        else:
            is_error = _ERROR.search(text) is not None
            self._waiting[source].append(_Entry(text, now + PATIENCE * is_error, is_error=is_error))
        self._release(source, now)

    def _warn(self, source: Source, text: str, now: float) -> None:
        assert source.rank is not None
        words = _OWN.sub("", text)
        repeat = self._repeats.setdefault((words, self._said[source, words]), _Repeat())
        self._said[source, words] += 1
        repeat.ranks.add(source.rank)
        if len(repeat.ranks) == 1:
            self._waiting[source].append(_Entry(text, now + WINDOW, repeat))
        else:
            self._after_repeat.add(source)
            self._late += repeat.is_shown

    def _release(self, source: Source, now: float) -> None:
        waiting = self._waiting[source]
        while waiting:
            entry = waiting[0]
            is_said_by_all = entry.repeat is not None and len(entry.repeat.ranks) == self._num_ranks
            if now < entry.until and not is_said_by_all:
                return
            waiting.popleft()
            self._shown.show(source, entry.text + self._others(entry.repeat))

    def _others(self, repeat: _Repeat | None) -> str:
        if repeat is None:
            return ""
        repeat.is_shown = True
        others = len(repeat.ranks) - 1
        return f" (and {others} more rank{'s' * (others > 1)})" if others else ""

    def say(self, text: str) -> None:
        """Show a message of the simulator."""
        self._shown.say(text)

    def state(self, host: str, state: str) -> None:
        """Pass on the state of a host."""
        self._shown.state(host, state)

    def tick(self) -> None:
        """Show lines whose time has come."""
        now = time.monotonic()
        for source in list(self._waiting):
            self._release(source, now)
        self._shown.tick()

    def fail(self) -> None:
        """Show the lines before the error, and nothing after it."""
        for source, waiting in self._waiting.items():
            errors = [number for number, entry in enumerate(waiting) if entry.is_error]
            kept = list(waiting)[: errors[0]] if errors else list(waiting)
            self._waiting[source] = deque(kept)
        self._release_all()
        self._failed = True

    def close(self) -> None:
        """Show lines that were held back, and the number of repeated warnings."""
        self._release_all()
        if self._late:
            what = "warning from another rank repeats" if self._late == 1 else "warnings from other ranks repeat"
            self.say(f"{self._late} more {what} one above")
        self._shown.close()

    def _release_all(self) -> None:
        for source in list(self._waiting):
            self._release(source, float("inf"))
