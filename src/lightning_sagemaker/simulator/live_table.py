# SPDX-License-Identifier: Apache-2.0
"""A table of the hosts of a simulated job below its lines, on a terminal and with rich."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO

from lightning_sagemaker.metric_lines import parse_line
from lightning_sagemaker.simulator.display import Lines, Source

if TYPE_CHECKING:
    from rich.table import Table

_REFRESHES = 4
"""Redraws of the table per second."""


def is_possible(stream: TextIO | None) -> bool:
    """Whether ``stream`` is a terminal that redraws lines, and rich is installed."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("CI") or os.environ.get("TERM", "dumb") == "dumb"
    is_terminal = stream is not None and not stream.closed and stream.isatty()
    return is_terminal and not plain and find_spec("rich") is not None


@dataclass
class _Host:
    state: str = "starting"
    metrics: dict[str, float] = field(default_factory=dict)
    last: str = ""

    def cell(self, *names: str) -> str:
        for name in names:
            if name in self.metrics:
                value = self.metrics[name]
                return f"{value:.0f}" if value == int(value) else f"{value:.4g}"
        return ""


class LiveTable(Lines):
    """Shows lines above a table of the hosts; a line of metrics updates the table instead.

    Args:
        output: The terminal.
        title: Title of the table.
        hosts: Names of the hosts.

    """

    def __init__(self, output: TextIO, title: str, hosts: Iterable[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title, self._begin = title, time.monotonic()
        self._hosts = {host: _Host() for host in hosts}
        self._console = Console(file=output, force_terminal=True)
        self._live = Live(console=self._console, refresh_per_second=_REFRESHES, get_renderable=self._table)
        self._live.start()

    def show(self, source: Source, text: str) -> None:
        """Show one line; metrics are shown in the table."""
        host = self._hosts.get(source.host)
        metrics = parse_line(text)
        if host is not None:
            host.last = text
            if host.state == "starting" and source.rank is not None:
                host.state = "running"
            host.metrics |= metrics
        if host is None or not metrics:
            self._write(f"{source.prefix} | {text}")

    def _write(self, line: str) -> None:
        self._console.out(line, highlight=False)

    def state(self, host: str, state: str) -> None:
        """Set the state of a host in the table."""
        self._hosts[host].state = state

    def close(self) -> None:
        """Mark unfinished hosts as stopped, and leave the final table on the terminal."""
        for host in self._hosts.values():
            host.state = "stopped" if host.state in ("starting", "running") else host.state
        self._live.stop()

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        seconds = int(time.monotonic() - self._begin)
        table = Table(title=f"{self._title}, {seconds // 60}:{seconds % 60:02}", title_justify="left", expand=True)
        table.add_column("host", no_wrap=True)
        table.add_column("state", no_wrap=True)
        for name in ("step", "loss", "samples/s"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("last line", no_wrap=True, overflow="ellipsis", ratio=1)
        for name, host in self._hosts.items():
            numbers = (host.cell("step"), host.cell("loss", "train_loss"), host.cell("samples_per_second"))
            table.add_row(name, host.state, *numbers, Text(host.last))
        return table


def display(output: TextIO, is_own_output: bool, title: str, hosts: Iterable[str]) -> Lines:
    """The display of a job: a table on a terminal, else lines.

    Args:
        output: Stream to write to.
        is_own_output: Whether ``output`` is this program's standard output, which may be a terminal.
        title: Title of the table.
        hosts: Names of the hosts.

    """
    return LiveTable(output, title, hosts) if is_own_output and is_possible(sys.stdout) else Lines(output)
