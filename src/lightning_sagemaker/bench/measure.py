# SPDX-License-Identifier: Apache-2.0
"""Runs a case as a child process, and reads its speed from the lines that it logs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from lightning_sagemaker.bench import breakdown, stats, traced
from lightning_sagemaker.bench.breakdown import Breakdown
from lightning_sagemaker.bench.cases import Case, Program
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.metric_lines import parse_line

_PREFIX = re.compile(r"^\S+ \[0\] \| ")
"""Prefix of rank zero's lines in a simulated job."""
_PATIENCE = 20.0
"""Seconds that a stopped child has to stop its own children."""
_TAIL = 12
"""Lines of a failed child's output that are shown."""


@dataclass(frozen=True)
class Round:
    """One run of a case.

    Attributes:
        rates: Samples per second of each logged window, in order.
        warm_up: Number of windows at the beginning that are discarded.
        seconds_to_first_line: Seconds from the start of the process to its first logged step.
        seconds: Run time of the process.

    """

    rates: tuple[float, ...]
    warm_up: int
    seconds_to_first_line: float
    seconds: float

    @property
    def steady(self) -> tuple[float, ...]:
        """Rates of the windows after the warm-up."""
        return self.rates[self.warm_up :]

    @property
    def is_steady(self) -> bool:
        """Whether the windows after the warm-up show no trend."""
        return stats.is_steady(self.steady)


def run_round(
    program: Program,
    case: Case,
    samples: int,
    folder: Path,
    threads: int,
    timeout: float,
    progress: Callable[[int], None] = lambda _: None,
) -> Round:
    """Run a case once.

    Args:
        program: The program to run.
        case: The settings.
        samples: Number of samples to train on.
        folder: Folder for the run's outputs, and its log as ``output.log``.
        threads: Threads per rank.
        timeout: Seconds after which the run is stopped.
        progress: Called with each step that is logged.

    Raises:
        LaunchError: If the run fails, takes too long, or logs too few lines.

    """
    begin = time.monotonic()
    lines = _completed(case, program.launched(case, samples, folder, threads), folder, threads, timeout, progress)
    seconds = time.monotonic() - begin
    rates = window_rates(lines, case.global_batch)
    if len(rates) < 4:
        raise LaunchError(
            f"{case.name} logged {len(rates)} windows; at least 4 are needed. HINT: a script must print lines like `step=10"
            f" samples_per_second=12.3` (callbacks MetricLogger and Throughput); its output is in {folder / 'output.log'}."
        )
    first = next(at for at, text in lines if _metrics(text)) - begin
    return Round(tuple(rates), stats.warm_up(rates), first, seconds)


def run_traced(program: Program, case: Case, folder: Path, threads: int, timeout: float) -> tuple[Breakdown, ...]:
    """Run a few steps of a case with torch's profiler.

    Args:
        program: The program to run.
        case: The settings.
        folder: Folder for the run's outputs, and its log as ``output.log``.
        threads: Threads per rank.
        timeout: Seconds after which the run is stopped.

    Returns:
        One breakdown of a step for each rank.

    Raises:
        LaunchError: If the run fails, takes too long, or has no Trainer or too few steps.

    """
    trace = folder / "trace"
    shutil.rmtree(trace, ignore_errors=True)  # of an earlier run into the same folder
    _completed(case, program.launched_traced(case, folder, trace, threads), folder, threads, timeout)
    found = breakdown.load(trace)
    if not found:
        raise LaunchError(
            f"{case.name}: no Lightning Trainer ran {traced.STEPS} optimizer steps. HINT: a script must honor"
            f" --max_steps; its output is in {folder / 'output.log'}."
        )
    return found


def window_rates(lines: Sequence[tuple[float, str]], global_batch: int) -> list[float]:
    """Samples per second between logged steps, from the lines' values or else from the times of the lines.

    Args:
        lines: Monotonic time in seconds, and text, of each line.
        global_batch: Samples per optimizer step.

    """
    logged = [(at, found) for at, text in lines if (found := _metrics(text))]
    rates = [found["samples_per_second"] for _, found in logged if found.get("samples_per_second", 0) > 0]
    if rates:
        return rates
    steps = [(at, found["step"]) for at, found in logged]
    return [
        (step - before) * global_batch / (at - earlier)
        for (earlier, before), (at, step) in pairwise(steps)
        if step > before and at > earlier
    ]


def _completed(
    case: Case,
    command: Sequence[str],
    folder: Path,
    threads: int,
    timeout: float,
    progress: Callable[[int], None] = lambda _: None,
) -> list[tuple[float, str]]:
    """The lines of a child, which must end with exit code 0."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, code = _lines(command, folder / "output.log", threads, timeout, progress)
    if code != 0:
        tail = "\n".join(text for _, text in lines[-_TAIL:])
        why = f"took longer than --timeout {timeout:g}" if code is None else f"ended with exit code {code}"
        raise LaunchError(f"{case.name} {why}:\n{tail}\nHINT: its full output is in {folder / 'output.log'}.")
    return lines


def _metrics(text: str) -> dict[str, float]:
    return parse_line(_PREFIX.sub("", text))


def _lines(
    command: Sequence[str], log: Path, threads: int, timeout: float, progress: Callable[[int], None]
) -> tuple[list[tuple[float, str]], int | None]:
    """All lines with their times, and the exit code; None if it was stopped."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment,
        start_new_session=True,
    )  # fmt: skip
    late = threading.Event()

    def stop_late() -> None:
        late.set()
        _stop(child)

    timer = threading.Timer(timeout, stop_late)
    timer.start()
    found = []
    try:
        with log.open("w") as file:
            assert child.stdout is not None
            for text in child.stdout:
                found.append((time.monotonic(), text.rstrip("\n")))
                file.write(text)
                if "step" in (logged := _metrics(text)):
                    progress(int(logged["step"]))
        code = child.wait()
    finally:
        timer.cancel()
        _stop(child)
    return found, None if late.is_set() else code


def _stop(child: subprocess.Popen[str]) -> None:
    """Stop the child and its process group; a simulated job stops its ranks by itself on SIGTERM."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_PATIENCE)
