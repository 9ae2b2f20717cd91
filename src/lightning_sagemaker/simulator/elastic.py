# SPDX-License-Identifier: Apache-2.0
"""Hosts that join and leave a simulated job while it trains: by a schedule, or by a file with the number wanted."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lightning_sagemaker.simulator.contract import LocalClusterError

FILE = "hosts"
"""In the job's folder: the number of hosts that there shall be, to be read and written while the job runs."""

_RANGE = re.compile(r"(\d+)(?::(\d+))?")
_CHANGE = re.compile(r"(\d+(?:\.\d+)?):([+-]\d+)")
_LATE = 10.0
"""Seconds that hosts have to end after the first one, which waits for the others."""


def host_range(text: str) -> tuple[int, int]:
    """``N`` or ``MIN:MAX`` as the fewest and the most hosts.

    Raises:
        LocalClusterError: If it is neither, or does not count from 1 upwards.

    """
    found = _RANGE.fullmatch(text)
    fewest, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= fewest <= most:
        raise LocalClusterError(
            f"hosts={text} was set. HINT: set an integer >= 1, or MIN:MAX such as 2:4 for hosts that join and leave."
        )
    return fewest, most


def parse_schedule(text: str, fewest: int, most: int) -> list[tuple[float, int]]:
    """``"10:+1,30:-1"`` as seconds since the job's start and the number of hosts from then on.

    Args:
        text: One change after the other, in order of time.
        fewest: Hosts that the job begins with, and needs.
        most: Hosts that it can have.

    Raises:
        LocalClusterError: If it says something else, or leads out of these bounds.

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
    """What hosts are asked of."""

    def is_running(self, host: str) -> bool:
        """Whether the first process of a host runs."""

    def is_over(self) -> bool:
        """Whether one has ended that was not asked to leave."""

    def ask_to_leave(self, host: str) -> None:
        """Send it the signal by which it leaves the job."""

    def dismiss(self, host: str) -> None:
        """End a host at once; how it ends is not a failure."""


@dataclass
class ElasticHosts:
    """Keeps as many hosts in the job as there shall be.

    Attributes:
        names: All hosts that there can be; the first has the coordinator and stays.
        fewest: Hosts with which the job begins.
        schedule: Seconds since the start, and the number of hosts from then on.
        file: Holds the number of hosts, for whoever wants to change it.
        hosts: Those of the job.
        start: Starts the host with this index.
        say: Called with a sentence for whoever watches.

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
        """Start and end hosts so that there are as many as there shall be; called again and again."""
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
        """Take the number in the file, if it is one."""
        try:
            text = self.file.read_text().strip()
        except OSError:
            return
        if text.isdigit() and self.fewest <= int(text) <= len(self.names):
            self._wanted, self._refused = int(text), ""
        elif text and text != self._refused:
            self._refused = text
            self.say(f"{self.file} says {text!r}. HINT: write a number from {self.fewest} to {len(self.names)}")

    def _end_late_ones(self) -> None:
        """Hosts that came as the training ended, and wait for a coordinator that is gone."""
        if self.hosts.is_running(self.names[0]):
            return
        self._first_ended = self._first_ended or time.monotonic()
        if time.monotonic() - self._first_ended > _LATE:
            for name in filter(self.hosts.is_running, self.names):
                self.hosts.dismiss(name)
