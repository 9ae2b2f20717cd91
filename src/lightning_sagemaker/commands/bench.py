# SPDX-License-Identifier: Apache-2.0
"""Measure a recipe, or a script that logs as recipes do: throughput, scaling efficiency, the gain from loader workers.

Options that bench does not know are passed to the program. Each case runs in a separate process. The results are
printed as a table and written to ``results.json``, ``results.csv`` and ``report.html`` in the output folder.

Examples::

    lightning-sagemaker bench throughput albert-mlm --batch-size 4 8 --config tiny.yaml
    lightning-sagemaker bench scaling sequence-classification --ranks 1x1 2x1 --strategy ddp smddp --config tiny.yaml
    lightning-sagemaker bench workers train.py --workers 0 1 2
    lightning-sagemaker bench compare runs/bench-1 runs/bench-2
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_sagemaker.cores import available_cores
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.option_types import integer, seconds

if TYPE_CHECKING:
    from lightning_sagemaker.bench.breakdown import Breakdown
    from lightning_sagemaker.bench.cases import Case, Program
    from lightning_sagemaker.bench.results import Results
    from lightning_sagemaker.job.job import SageMakerJob

HELP = "measure throughput, scaling and loader workers; compare two measurements"
_KINDS = {
    "throughput": "samples per second, for each combination of the options",
    "scaling": "throughput by ranks, on simulated hosts, and T(N)/(N T(1))",
    "workers": "the best number of loader workers, its gain over 0, and the bottleneck",
}


_STEPS = {"throughput": 60, "scaling": 60, "workers": 160}
"""Default optimizer steps of the case with the largest global batch; more for ``workers``, whose cases differ little."""

_SECONDS_BETWEEN_LINES = 20.0
"""Seconds between two progress lines of a run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker bench``."""
    kinds = parser.add_subparsers(title="what", metavar="WHAT", required=True, dest="kind")
    for name, text in _KINDS.items():
        _add_sweep(kinds.add_parser(name, help=text, description=text, allow_abbrev=False), name)
    both = kinds.add_parser("compare", help="compare two results, with a verdict", allow_abbrev=False)
    both.add_argument("first", type=Path, metavar="A", help="folder of a measurement, or its results.json")
    both.add_argument("second", type=Path, metavar="B")
    both.add_argument("--output", type=Path, metavar="FILE", help="also write an HTML page")


def _add_sweep(parser: argparse.ArgumentParser, kind: str) -> None:
    parser.set_defaults(script_arguments=[])
    add = parser.add_argument
    add("target", metavar="RECIPE|SCRIPT", help="a recipe's name, or a script that logs with MetricLogger")
    ranks = ["1x1", "2x1"] if kind == "scaling" else ["1x1"]
    add("--ranks", nargs="+", default=ranks, metavar="HOSTSxPROCESSES", help=f"default: {' '.join(ranks)}")
    workers = [0, 1, 2] if kind == "workers" else []
    add("--workers", nargs="+", type=int, default=workers, metavar="N", help="loader workers per rank")
    add("--strategy", nargs="+", default=[], metavar="NAME", help="of the Trainer")
    add("--batch-size", nargs="+", type=int, default=[8], metavar="N", help="per rank and micro-batch (default: 8)")
    add("--accumulate", nargs="+", type=int, default=[1], metavar="N", help="micro-batches per step (default: 1)")
    add("--precision", nargs="+", default=[], metavar="NAME", help="of the Trainer")
    add(
        "--compile",
        nargs="+",
        default=[],
        choices=("on", "off"),
        help="torch.compile (a script gets --compile true|false)",
    )
    add("--network", nargs="+", default=[], metavar="netns:RATE", help="limit the hosts' bandwidth (needs root)")
    add(
        "--samples",
        type=integer(1),
        metavar="N",
        help=f"samples that each case trains on (default: {_STEPS[kind]} steps of the largest)",
    )
    add(
        "--rounds",
        type=int,
        default=2,
        metavar="N",
        help="number of times that all cases are run, in turn (default: 2)",
    )
    add("--no-breakdown", action="store_true", help="skip each case's extra run with torch's profiler")
    add("--timeout", type=seconds, default=600.0, metavar="SECONDS", help="time limit of a run (default: 600)")
    add("--output", type=Path, metavar="DIR", help="default: runs/bench-TIME, in a training job the model's folder")


def main(arguments: argparse.Namespace) -> int:
    """Measure, or compare; the exit code is 2 for bad input or a failed first round, 1 if a later round was dropped."""
    try:
        return _compare(arguments) if arguments.kind == "compare" else _measure(arguments)
    except KeyboardInterrupt:
        print("lightning-sagemaker bench: stopped; only the runs' own output was written", file=sys.stderr)
        return 130


def _measure(arguments: argparse.Namespace) -> int:
    from lightning_sagemaker.bench.cases import Program
    from lightning_sagemaker.bench.page import report
    from lightning_sagemaker.bench.text_report import table
    from lightning_sagemaker.job.job import SageMakerJob
    from lightning_sagemaker.text_files import write_text

    program = Program(arguments.target, tuple(arguments.script_arguments))
    program.path()  # reports a wrong target before anything runs
    cases = _cases(arguments)
    samples = arguments.samples or _STEPS[arguments.kind] * max(case.global_batch for case in cases)
    for case in cases:
        case.steps(samples)
    if arguments.rounds < 1:
        raise LaunchError(f"--rounds {arguments.rounds} was given. HINT: it must be at least 1.")
    job = SageMakerJob.from_environment()
    if job.in_container and (job.world_size or 1) > 1:
        raise LaunchError(
            f"bench runs in a job of {job.world_size} processes. HINT: run it in a job of one host and one process; --ranks"
            " says how many it simulates there."
        )
    folder, scratch = _folders(arguments.output, job)
    threads = max(1, available_cores() // max(case.ranks for case in cases))
    results = _run(arguments.kind, program, cases, samples, threads, arguments, scratch)
    results.save(folder)
    write_text(folder / "report.html", report(results))
    print(f"\n{table(results)}\n\nreport: {folder / 'report.html'}")
    return 0 if all(len(one.rounds) == arguments.rounds for one in results.cases) else 1


def _folders(given: Path | None, job: SageMakerJob) -> tuple[Path, Path]:
    """Folders of the report and of the runs; in a training job, below the model and the output folder."""
    if given is not None:
        return given.absolute(), given.absolute()
    if job.in_container:
        return Path(job.model_dir) / "bench", Path(job.output_dir) / "bench"
    folder = (Path("runs") / f"bench-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    return folder, folder


def _cases(arguments: argparse.Namespace) -> list[Case]:
    from lightning_sagemaker.bench.cases import Case, sweep

    for option, values in (("--batch-size", arguments.batch_size), ("--accumulate", arguments.accumulate)):
        if min(values) < 1:
            raise LaunchError(f"{option} {min(values)} was given. HINT: it must be at least 1.")
    if arguments.workers and min(arguments.workers) < 0:
        raise LaunchError(f"--workers {min(arguments.workers)} was given. HINT: it must be at least 0.")
    sizes = [_size(text) for text in arguments.ranks]
    return [
        case
        for hosts, processes in sizes
        for case in sweep(
            Case(hosts, processes),
            strategy=arguments.strategy,
            num_workers=arguments.workers,
            batch=arguments.batch_size,
            accumulation=arguments.accumulate,
            precision=arguments.precision,
            compile=[value == "on" for value in arguments.compile],
            network=arguments.network if hosts > 1 else [],
        )
    ]


def _size(text: str) -> tuple[int, int]:
    hosts, _, processes = text.partition("x")
    if not (hosts.isdecimal() and processes.isdecimal() and int(hosts) and int(processes)):
        raise LaunchError(f"--ranks {text!r} was given. HINT: write hosts x processes of each, as 2x1.")
    return int(hosts), int(processes)


def _run(
    kind: str, program: Program, cases: list[Case], samples: int, threads: int, given: argparse.Namespace, folder: Path
) -> Results:
    """Run all cases once per round, so that other load on the machine affects all of them.

    If a round after the first fails, the measurement ends with the rounds before it.
    """
    from statistics import median

    from lightning_sagemaker.bench.measure import Round, run_round
    from lightning_sagemaker.bench.results import Measured, Results, environment
    from lightning_sagemaker.job.job import SageMakerJob

    about = environment(SageMakerJob.from_environment())
    print(f"cases: {len(cases)}, rounds: {given.rounds}, output of the runs: {folder / 'runs'}", flush=True)
    rounds: dict[Case, list[Round]] = {case: [] for case in cases}
    for number in range(1, given.rounds + 1):
        try:
            for case in cases if number % 2 else reversed(cases):  # alternate, so that a slowdown affects all alike
                place = folder / "runs" / f"{case.name}-{number}"
                progress = _Progress(f"round {number}  {case.name}", case.steps(samples))
                made = run_round(program, case, samples, place, threads, given.timeout, progress)
                rounds[case].append(made)
                rate = median(made.steady)
                print(f"round {number}  {case.name}: {rate:.4g} samples/s, {made.seconds:.0f} s", flush=True)
        except LaunchError as error:
            if number == 1:
                raise
            print(f"lightning-sagemaker bench: round {number} is skipped: {error}", file=sys.stderr)
            rounds = {case: done[: number - 1] for case, done in rounds.items()}
            break
    measured = tuple(
        Measured(
            case,
            tuple(rounds[case]),
            shlex.join(program.launched(case, samples, folder / "runs" / case.name, threads)),
            () if given.no_breakdown else _breakdown(program, case, folder, threads, given.timeout),
        )
        for case in cases
    )
    return Results(kind, program.target, samples, threads, about, measured)


class _Progress:
    """Prints the progress of a long run."""

    def __init__(self, name: str, steps: int) -> None:
        self._name, self._steps = name, steps
        self._printed = time.monotonic()

    def __call__(self, step: int) -> None:
        now = time.monotonic()
        if now - self._printed > _SECONDS_BETWEEN_LINES:
            self._printed = now
            print(f"{self._name}: step {step} of {self._steps}", flush=True)


def _breakdown(program: Program, case: Case, folder: Path, threads: int, timeout: float) -> tuple[Breakdown, ...]:
    """Profile a step on each rank; empty, with the reason on stderr, if the profiled run fails."""
    from lightning_sagemaker.bench.measure import run_traced

    try:
        found = run_traced(program, case, folder / "runs" / f"{case.name}-traced", threads, timeout)
    except LaunchError as error:
        print(f"lightning-sagemaker bench: no step breakdown: {error}", file=sys.stderr)
        return ()
    print(f"traced   {case.name}: {found[0].steps} steps", flush=True)
    return found


def _compare(arguments: argparse.Namespace) -> int:
    from lightning_sagemaker.bench.page import comparison
    from lightning_sagemaker.bench.results import Results
    from lightning_sagemaker.bench.verdicts import compare, differences
    from lightning_sagemaker.text_files import write_text

    first, second = Results.load(arguments.first), Results.load(arguments.second)
    pairs = compare(first, second)
    for pair in pairs:
        print(f"{pair.name}: {pair.first.value:.4g} and {pair.second.value:.4g} samples/s; {pair.verdict}")
    for text in differences(first, second):
        print(f"differs: {text}")
    if arguments.output is not None:
        write_text(arguments.output, comparison(first, second, pairs))
    return 0
