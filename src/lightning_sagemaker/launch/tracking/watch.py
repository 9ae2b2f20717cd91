# SPDX-License-Identifier: Apache-2.0
"""A table of the account's running jobs: state, step, loss, throughput, cost so far, interruptions."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any, TextIO

from lightning_sagemaker.launch.planning.pricing import load_prices
from lightning_sagemaker.launch.tracking.jobs import ENDED, JobStatus, TrainingJobs
from lightning_sagemaker.metric_lines import printed_values

_INTERRUPTED = ("Interrupted",)
"""Secondary statuses of a spot job whose instances were reclaimed."""

COLUMNS = ("job", "state", "step", "loss", "samples/s", "cost so far", "interruptions")


@dataclass(frozen=True)
class JobRow:
    """A row of the table; an unknown value is a dash."""

    name: str
    state: str
    step: str = "-"
    loss: str = "-"
    speed: str = "-"
    cost: str = "-"
    interruptions: str = "-"

    def text(self) -> str:
        """The same as one line for a log."""
        named = zip(COLUMNS[2:], astuple(self)[2:], strict=True)
        known = [f"{name.replace(' ', '_')}={value}" for name, value in named if value != "-"]
        return " ".join([self.name, self.state, *known])


class Watch:
    """Polls the running jobs.

    Args:
        jobs: The account's jobs.
        contains: Part of the jobs' names.
        limit: Maximum number of jobs; the newest are shown.

    """

    def __init__(self, jobs: TrainingJobs, contains: str = "", limit: int = 20) -> None:
        self._jobs, self._contains, self._limit = jobs, contains, limit
        self._followed: dict[str, JobRow] = {}
        self._seen: dict[str, dict[str, str]] = {}
        self._last: dict[str, dict[str, str]] = {}
        self._prices = load_prices(jobs.session.region_name)

    def look(self) -> list[JobRow]:
        """A row for each job that is running, or has ended since the first call."""
        for name, status, _ in self._jobs.list(self._contains, self._limit):
            if status not in ENDED:
                self._followed.setdefault(name, JobRow(name, status))
        for name, row in self._followed.items():
            if row.state not in ENDED:
                self._followed[name] = self._row(self._jobs.describe(name))
        return list(self._followed.values())

    def _row(self, status: JobStatus) -> JobRow:
        last = self._last.setdefault(status.name, {})
        for _, line in self._jobs.new_lines(status.name, self._seen.setdefault(status.name, {})):
            last |= printed_values(line)
        changes = status.description.get("SecondaryStatusTransitions", [])
        interrupted = sum(1 for one in changes if one.get("Status") in _INTERRUPTED)
        return JobRow(
            status.name,
            status.status if status.status in ENDED else status.phase,
            last.get("step", "-"),
            last.get("loss", last.get("train_loss", "-")),
            last.get("samples_per_second", "-"),
            self._cost(status),
            str(interrupted) if status.description.get("EnableManagedSpotTraining") else "-",
        )

    def _cost(self, status: JobStatus) -> str:
        resources = status.description.get("ResourceConfig", {})
        groups = resources.get("InstanceGroups") or [resources]
        prices = [self._prices.usd_per_hour.get(one.get("InstanceType", "")) for one in groups]
        if not all(prices):
            return "-"
        hourly = sum(float(price or 0) * one["InstanceCount"] for price, one in zip(prices, groups, strict=True))
        share = self._prices.spot_share if status.description.get("EnableManagedSpotTraining") else 1.0
        return f"${hourly * share * status.seconds / 3600:,.2f}"


def watch_jobs(watch: Watch, poll: float = 10.0, output: TextIO | None = None) -> None:
    """Show the running jobs until none is left: a table on a terminal, else a line for each job that has changed.

    Args:
        watch: The jobs to show.
        poll: Polling interval in seconds.
        output: Stream to write to; ``sys.stdout`` when None.

    """
    stream = output or sys.stdout
    table = _table_on(stream)
    shown: dict[str, str] = {}
    try:
        while True:
            rows = watch.look()
            if table is not None:
                table.update(_table(rows), refresh=True)
            for row in rows:
                if table is None and shown.get(row.name) != row.text():
                    shown[row.name] = row.text()
                    stream.write(f"{row.text()}\n")
                    stream.flush()
            if all(row.state in ENDED for row in rows):
                break
            time.sleep(poll)
    finally:
        if table is not None:
            table.stop()
    if not rows:
        stream.write("No job is running.\n")


def _table_on(stream: TextIO) -> Any:
    """Rich's live display; None without a terminal or without rich."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        stream.write("lightning-sagemaker: no table without rich. HINT: pip install rich.\n")
        return None
    live = Live(console=Console(file=stream), auto_refresh=False)
    live.start()
    return live


def _table(rows: Iterable[JobRow]) -> object:
    from rich.table import Table

    table = Table(*COLUMNS, box=None, header_style="bold")
    for row in rows:
        table.add_row(*(re.sub(r"\[", r"\\[", str(cell)) for cell in astuple(row)))
    return table
