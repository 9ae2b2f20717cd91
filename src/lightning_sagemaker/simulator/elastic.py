# SPDX-License-Identifier: Apache-2.0
"""Hosts that join and leave a simulated job while it trains: by a schedule, or by a file with the desired number."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from lightning_sagemaker.simulator.contract import LocalClusterError

FILE = "hosts"
"""File in the job's folder with the desired number of hosts, which can be changed while the job runs."""

_RANGE = re.compile(r"(\d+)(?::(\d+))?")
_CHANGE = re.compile(r"(\d+(?:\.\d+)?):([+-]\d+)")
_LATE = 10.0
"""Seconds that hosts have to end after the first host, which waits for the others."""


class Changes(NamedTuple):
    """Of the number of hosts.

    Attributes:
        fewest: Number of hosts at the start, which is the minimum.
        schedule: Pairs of seconds since the start and the number of hosts from then on.

    """

    fewest: int
    schedule: list[tuple[float, int]]


def plan_hosts(hosts: int | str, schedule: str | None) -> tuple[int, Changes | None]:
    """The maximum number of hosts; and how it changes, if it is not fixed.

    Args:
        hosts: ``N``, or ``MIN:MAX`` for hosts that join and leave.
        schedule: When they do, as :func:`parse_schedule` reads it.

    Raises:
        LocalClusterError: If one is malformed, or a schedule is given for a fixed number.

    """
    fewest, most = host_range(str(hosts))
    if not isinstance(hosts, str) or ":" not in hosts:
        if schedule is None:
            return most, None
        raise LocalClusterError(
            f"schedule={schedule!r} was set, and hosts={hosts} is a fixed number. HINT: set --hosts MIN:MAX, such as 2:4."
        )
    return most, Changes(fewest, parse_schedule(schedule or "", fewest, most))


def host_range(text: str) -> tuple[int, int]:
    """``N`` or ``MIN:MAX`` as the minimum and maximum number of hosts.

    Raises:
        LocalClusterError: If it is neither, or not 1 <= MIN <= MAX.

    """
    found = _RANGE.fullmatch(text)
    fewest, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= fewest <= most:
        raise LocalClusterError(
            f"hosts={text} was set. HINT: set an integer >= 1, or MIN:MAX such as 2:4 for hosts that join and leave."
        )
    return fewest, most


def parse_schedule(text: str, fewest: int, most: int) -> list[tuple[float, int]]:
    """Parse ``"10:+1,30:-1"`` to pairs of seconds since the job's start and the number of hosts from then on.

    Args:
        text: Changes in order of time, separated by commas.
        fewest: Number of hosts at the start, which is the minimum.
        most: Maximum number of hosts.

    Raises:
        LocalClusterError: If ``text`` is malformed, or a number is out of these bounds.

    """
    wanted, before, found = fewest, 0.0, []
    for part in filter(None, (one.strip() for one in text.split(","))):
        match = _CHANGE.fullmatch(part)
        if match is None or float(match[1]) < before:
            raise LocalClusterError(
                f"--schedule {text!r} has {part!r}. HINT: write SECONDS:+HOSTS or SECONDS:-HOSTS in order of time, such as"
                " 10:+1,30:-1."
            )
        before, wanted = float(match[1]), wanted + int(match[2])
        if not fewest <= wanted <= most:
            raise LocalClusterError(
                f"--schedule {text!r} leads to {wanted} host(s) after {match[1]} s, and --hosts is {fewest}:{most}. HINT:"
                f" the job starts with {fewest}; stay within this range."
            )
        found.append((before, wanted))
    return found


class Hosts(Protocol):
    """The operations on hosts that :class:`ElasticHosts` needs."""

    def is_running(self, host: str) -> bool:
        """Whether the first process of a host is running."""

    def is_over(self) -> bool:
        """Whether a host that was not asked to leave has ended without a failure, so training has."""

    def ask_to_leave(self, host: str) -> None:
        """Send a host the signal that makes it leave the job."""

    def dismiss(self, host: str) -> None:
        """Kill a host; its exit code is not a failure."""


@dataclass
class ElasticHosts:
    """Starts and ends hosts to keep the desired number in the job.

    Attributes:
        names: Names of all possible hosts; the first has the coordinator and stays.
        fewest: Number of hosts at the start, which is the minimum.
        schedule: Pairs of seconds since the start and the number of hosts from then on.
        file: File with the desired number of hosts, which the user may change.
        hosts: The job's hosts.
        start: Called with an index; starts that host.
        say: Called with a message for the user.

    """

    names: Sequence[str]
    fewest: int
    schedule: list[tuple[float, int]]
    file: Path
    hosts: Hosts
    start: Callable[[int], None]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._begin = time.monotonic()
        self._leaving: set[str] = set()
        self._first_ended: float | None = None
        self._refused = ""
        self._wanted = self.fewest
        self.file.write_text(f"{self.fewest}\n")
        for index in range(self.fewest):
            self.start(index)

    def tick(self) -> None:
        """Start or end one host if their number is not the desired one; called repeatedly."""
        if self.hosts.is_over():
            self._end_late_ones()
            return
        while self.schedule and time.monotonic() - self._begin >= self.schedule[0][0]:
            self.file.write_text(f"{self.schedule.pop(0)[1]}\n")
        self._read()
        self._leaving = {name for name in self._leaving if self.hosts.is_running(name)}
        present = [name for name in self.names if self.hosts.is_running(name) and name not in self._leaving]
        if len(present) > self._wanted:
            self.say(f"{present[-1]} leaves the job")
            self._leaving.add(present[-1])
            self.hosts.ask_to_leave(present[-1])
        elif len(present) < self._wanted:
            absent = [name for name in self.names if not self.hosts.is_running(name)]
            if absent:
                self.say(f"{absent[0]} joins the job")
                self.start(self.names.index(absent[0]))

    def _read(self) -> None:
        """Read the desired number from the file, if it is valid."""
        try:
            text = self.file.read_text().strip()
        except (OSError, ValueError):
            return
        if text.isdecimal() and self.fewest <= int(text) <= len(self.names):
            self._wanted, self._refused = int(text), ""
        elif text and text != self._refused:
            self._refused = text
            self.say(f"{self.file} says {text!r}. HINT: write a number from {self.fewest} to {len(self.names)}")

    def _end_late_ones(self) -> None:
        """Kill hosts that joined as training ended: they wait for a coordinator that has exited."""
        if self.hosts.is_running(self.names[0]):
            return
        self._first_ended = self._first_ended or time.monotonic()
        if time.monotonic() - self._first_ended > _LATE:
            for name in filter(self.hosts.is_running, self.names):
                self.hosts.dismiss(name)
