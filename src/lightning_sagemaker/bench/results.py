# SPDX-License-Identifier: Apache-2.0
"""Results of a measurement, with the machine and the commands: written as JSON and CSV, and read again."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lightning_sagemaker.bench import breakdown, stats
from lightning_sagemaker.bench.breakdown import PARTS, Breakdown
from lightning_sagemaker.bench.cases import Case
from lightning_sagemaker.bench.measure import Round
from lightning_sagemaker.cores import available_cores
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.job.job import SageMakerJob
from lightning_sagemaker.text_files import write_text

FILE = "results.json"
_PACKAGES = ("lightning-sagemaker", "lightning", "torch", "transformers")


@dataclass(frozen=True)
class Measured:
    """A case and its rounds.

    Attributes:
        case: The settings.
        rounds: Result of each run.
        command: The command line, quoted for a shell.
        breakdown: Parts of a step on each rank, from a separate run with torch's profiler; may be empty.

    """

    case: Case
    rounds: tuple[Round, ...]
    command: str
    breakdown: tuple[Breakdown, ...] = ()

    @property
    def windows(self) -> list[tuple[float, ...]]:
        """Steady windows of each round."""
        return [one.steady for one in self.rounds]

    @cached_property
    def rate(self) -> stats.Interval:
        """Samples per second."""
        return stats.rate(self.windows)

    @property
    def is_steady(self) -> bool:
        """Whether no round shows a trend."""
        return all(one.is_steady for one in self.rounds)


@dataclass(frozen=True)
class Results:
    """All cases of a sweep.

    Attributes:
        kind: ``throughput``, ``scaling`` or ``workers``.
        target: Recipe or script that was run.
        samples: Number of samples that each run trained on.
        threads: Threads per rank.
        environment: The machine and the versions.
        cases: Measured cases, in the order of the sweep.

    """

    kind: str
    target: str
    samples: int
    threads: int
    environment: dict[str, Any]
    cases: tuple[Measured, ...]

    def efficiency(self, one: Measured) -> float | None:
        """T(N) / (N x T(1)), against the case with the fewest ranks that differs only in hosts, processes and network.

        None if no such case has fewer ranks.
        """
        alike = [
            other
            for other in self.cases
            if _but_for_size(other.case) == _but_for_size(one.case) and other.case.ranks < one.case.ranks
        ]
        if not alike:
            return None
        base = min(alike, key=lambda other: other.case.ranks)
        return one.rate.value * base.case.ranks / (one.case.ranks * base.rate.value)

    def save(self, folder: Path) -> None:
        """Write ``results.json`` and ``results.csv``; a reader sees complete files only."""
        write_text(folder / FILE, json.dumps(self.plain(), indent=1) + "\n")
        write_text(folder / "results.csv", self.csv())

    def plain(self) -> dict[str, Any]:
        """The results in plain containers, for JSON."""
        return {
            "version": 1,
            "kind": self.kind,
            "target": self.target,
            "samples": self.samples,
            "threads": self.threads,
            "environment": self.environment,
            "cases": [self._plain_case(one) for one in self.cases],
        }

    def _plain_case(self, one: Measured) -> dict[str, Any]:
        return {
            **self._row(one),
            "settings": asdict(one.case),
            "command": one.command,
            "rounds": [asdict(each) for each in one.rounds],
            "breakdown": [asdict(each) for each in one.breakdown],
        }

    def csv(self) -> str:
        """One row for each case."""
        rows = [self._row(one) for one in self.cases]
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def _row(self, one: Measured) -> dict[str, Any]:
        found = one.rate
        return {
            "name": one.case.name,
            "hosts": one.case.hosts,
            "processes": one.case.processes,
            "strategy": one.case.strategy,
            "num_workers": one.case.num_workers,
            "batch": one.case.batch,
            "accumulation": one.case.accumulation,
            "precision": one.case.precision,
            "compile": one.case.compile,
            "network": one.case.network,
            "samples_per_second": found.value,
            "low": found.low,
            "high": found.high,
            "efficiency": self.efficiency(one),
            "is_steady": one.is_steady,
            **_parts(one),
        }

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what :meth:`save` wrote.

        Args:
            path: The file, or its folder.

        Raises:
            LaunchError: If the file is missing or is not a result.

        """
        file = path / FILE if path.is_dir() else path
        try:
            found = json.loads(file.read_text())
            cases = tuple(
                Measured(
                    Case(**one["settings"]),
                    tuple(Round(**(each | {"rates": tuple(each["rates"])})) for each in one["rounds"]),
                    one["command"],
                    tuple(Breakdown(**each) for each in one.get("breakdown", ())),
                )
                for one in found["cases"]
            )
            return cls(found["kind"], found["target"], found["samples"], found["threads"], found["environment"], cases)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LaunchError(
                f"{str(path)!r} is not a result of bench ({type(error).__name__}). HINT: pass the folder that bench printed,"
                f" or the {FILE} in it."
            ) from None


def environment(job: SageMakerJob) -> dict[str, Any]:
    """Properties of the machine and versions on which the results depend."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "instance_type": job.instance_type if job.in_container and not job.simulated else None,
        "cores": available_cores(),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        **{name: _version(name) for name in _PACKAGES},
        "command": ["lightning-sagemaker", *sys.argv[1:]],
    }


def best(cases: Sequence[Measured]) -> Measured:
    """The fastest case."""
    return max(cases, key=lambda one: one.rate.value)


def _but_for_size(case: Case) -> tuple[object, ...]:
    facts = asdict(case)
    return tuple(value for name, value in facts.items() if name not in ("hosts", "processes", "network"))


def _parts(one: Measured) -> dict[str, float | None]:
    """Seconds of a step's parts, the mean over the ranks; None where they were not recorded."""
    mean = breakdown.mean(one.breakdown) if one.breakdown else None
    found = {f"{part}_seconds": None if mean is None else mean.seconds[part] for part in PARTS}
    return found | {"traced_step_seconds": None if mean is None else mean.traced_seconds}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
