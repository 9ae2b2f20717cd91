# SPDX-License-Identifier: Apache-2.0
"""What of a simulated job's output is shown: every line, or what several ranks say once and one failure alone."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TextIO

WINDOW = 1.0
"""Seconds for which a warning waits for the other ranks to say the same."""

PATIENCE = 5.0
"""Seconds for which the beginning of an error waits for the end of its rank."""

_WARNING = re.compile(r"\w*Warning: |\bWARNING\b|\[W\d{3,} |^\S+\.py:\d+: ")
_ERROR = re.compile(r"Traceback \(most recent call last\)|^(\S+: )?error: ")
_OWN = re.compile(r"^(\[rank\d+\]:)?\s*(\[W\d{3,} [\d:.]+|[\d:.,\-TZ/ ]{8,})")
"""What differs between ranks that warn of the same: rank and time."""


@dataclass(frozen=True)
class Source:
    """Who prints.

    Args:
        host: Its name.
        rank: None: the host's launcher.

    """

    host: str
    rank: int | None = None

    @property
    def prefix(self) -> str:
        """Before each of its lines."""
        return self.host if self.rank is None else f"{self.host} [{self.rank}]"

    @property
    def log_name(self) -> str:
        """Its log file."""
        return f"{self.host}.log" if self.rank is None else f"{self.host}-rank-{self.rank}.log"


class Lines:
    """Shows every line with a prefix.

    Args:
        output: Where to.

    """

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def show(self, source: Source, text: str) -> None:
        """Show one line."""
        self._write(f"{source.prefix} | {text}")

    def say(self, text: str) -> None:
        """Show a line of the simulator's own."""
        self._write(f"lightning-sagemaker: {text}")

    def _write(self, line: str) -> None:
        self._output.write(f"{line}\n")
        self._output.flush()

    def state(self, host: str, state: str) -> None:
        """Learn what a host is doing."""

    def fail(self) -> None:
        """Learn that a rank or a launcher has failed; what the others print from here on follows from it."""

    def tick(self) -> None:
        """Called again and again while the job runs."""

    def close(self) -> None:
        """Show what waits, and end."""


@dataclass
class _Repeat:
    """A warning that several ranks may give."""

    ranks: set[int] = field(default_factory=set)
    is_shown: bool = False


@dataclass
class _Entry:
    """A line that waits to be shown."""

    text: str
    until: float
    repeat: _Repeat | None = None
    is_error: bool = False


class Digest(Lines):
    """Shows what several ranks warn of once, and of a failed job the failed rank's words alone, which its report has.

    Args:
        shown: Gets the lines that are shown.
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
        """Show one line, at once or when it is known what the other ranks say."""
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
        """Show a line of the simulator's own."""
        self._shown.say(text)

    def state(self, host: str, state: str) -> None:
        """Learn what a host is doing."""
        self._shown.state(host, state)

    def tick(self) -> None:
        """Show what has waited long enough."""
        now = time.monotonic()
        for source in list(self._waiting):
            self._release(source, now)
        self._shown.tick()

    def fail(self) -> None:
        """Show what came before the error, and nothing more."""
        for source, waiting in self._waiting.items():
            errors = [number for number, entry in enumerate(waiting) if entry.is_error]
            kept = list(waiting)[: errors[0]] if errors else list(waiting)
            self._waiting[source] = deque(kept)
        self._release_all()
        self._failed = True

    def close(self) -> None:
        """Show what waits."""
        self._release_all()
        if self._late:
            what = "warning from another rank repeats" if self._late == 1 else "warnings from other ranks repeat"
            self.say(f"{self._late} more {what} one above")
        self._shown.close()

    def _release_all(self) -> None:
        for source in list(self._waiting):
            self._release(source, float("inf"))
