# SPDX-License-Identifier: Apache-2.0
"""Kill and freeze the ranks of a job that recovers in itself, and compare it with one that was left alone.

    python -m tests.chaos.recovery --faults 200

A run is one job with some ten faults at random moments: of any rank, the first included, of two at once, of one while the
others recover from another, of a replacement while it prepares or joins, and ranks that freeze. Afterwards every step must
have trained on the same samples with the same losses, all ranks must have had the same weights in each step, and weights,
validations and the best checkpoint in the end must be those of the job that was left alone. Two ranks give the same numbers
to the last digit; a sum over more of them has another order while one is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

_TRAINING = Path(__file__).parent / "recovery_training.py"
_TIME_LIMIT = 400.0
_ROUNDING = 2e-6
"""Of losses and weights of about one, where a sum has another order."""
KINDS = ("kill", "kill", "kill the first", "kill two", "kill during recovery", "kill the replacement", "freeze")


@dataclass(frozen=True)
class Setting:
    """One kind of job."""

    ranks: int
    accumulate: int = 1
    workers: int = 0
    dropout: float = 0.0
    optimizer: str = "sgd"
    rejoin_timeout: float = 0.0
    samples: int = 1000
    epochs: int = 3

    @property
    def arguments(self) -> list[str]:
        """Of the training."""
        names = ("accumulate", "workers", "dropout", "optimizer", "samples", "epochs")
        return [word for name in names for word in (f"--{name}", str(getattr(self, name)))]


SETTINGS = (
    Setting(2, optimizer="adamw"),
    Setting(3, samples=1500),
    Setting(4, samples=2000),
    Setting(2, accumulate=2),
    Setting(2, workers=2),
    Setting(3, samples=1500, dropout=0.2),
    Setting(2, rejoin_timeout=20),
)


@dataclass
class Outcome:
    """What became of a job.

    Attributes:
        problems: What differs from the job that was left alone; empty if nothing does.
        gaps: Seconds from each fault to the next optimizer step, and its kind.

    """

    code: int
    seconds: float
    problems: list[str] = field(default_factory=list)
    gaps: list[tuple[str, float]] = field(default_factory=list)


def start(
    setting: Setting, folder: Path, *options: str, training: Path = _TRAINING, words: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a job; its output goes to ``output.txt`` in the folder.

    Args:
        setting: Of which kind.
        folder: Where its files go.
        *options: Of the supervisor.
        training: The script.
        words: Further arguments of that.

    """
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--processes", str(setting.ranks)]
    command += [
        "--rejoin-timeout",
        str(setting.rejoin_timeout),
        "--attempts",
        "9",
        *options,
        str(training),
        str(folder),
    ]
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(
            [*command, *setting.arguments, *words], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def run(
    setting: Setting, folder: Path, rng: random.Random | None, faults: int = 10, kinds: Sequence[str] = KINDS
) -> Outcome:
    """Run one job.

    Args:
        setting: Of which kind.
        folder: An empty one.
        rng: Of the faults; None leaves the job alone.
        faults: How many.
        kinds: Of which kinds.

    """
    folder.mkdir()
    begin = time.monotonic()
    process = start(setting, folder)
    times: list[tuple[str, float]] = []
    try:
        while process.poll() is None and time.monotonic() - begin < _TIME_LIMIT:
            if rng is None or len(times) >= faults or not _has_trained(folder, 3):
                time.sleep(0.05)
                continue
            time.sleep(rng.uniform(0.3, 2.5))
            if process.poll() is None:
                kind = rng.choice(kinds)
                times.append((kind, time.time()))
                inflict(kind, folder, setting.ranks, rng)
                _wait_for_all(folder, setting.ranks, process, patience=15)
        hung = process.poll() is None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    outcome = Outcome(process.returncode, time.monotonic() - begin)
    if hung:
        outcome.problems.append(f"it hung for {_TIME_LIMIT:.0f} s")
    steps = [row[2] for row in rows(folder / "steps.jsonl") if row[0] == "step"]
    outcome.gaps = [(kind, _gap(steps, at)) for kind, at in times]
    return outcome


def inflict(kind: str, folder: Path, ranks: int, rng: random.Random) -> None:
    """One fault."""
    first, *others = rng.sample(range(ranks), ranks)
    if kind == "kill the first":
        first = 0
    if kind == "freeze":
        _signal(folder, first, signal.SIGSTOP)
        return
    before = _pid(folder, first)
    _signal(folder, first, signal.SIGKILL)
    if kind == "kill two" and ranks > 2:
        _signal(folder, others[0], signal.SIGKILL)
    elif kind == "kill during recovery" and ranks > 2:
        time.sleep(rng.uniform(0, 0.3))
        _signal(folder, others[0], signal.SIGKILL)
    elif kind == "kill the replacement":
        deadline = time.monotonic() + 20
        while _pid(folder, first) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 2.0))
        _signal(folder, first, signal.SIGKILL)


def compare(reference: Path, folder: Path, setting: Setting, faults: int) -> list[str]:
    """What differs between two jobs.

    Rank zero may die between a step and what it notes of it, so with each of the faults the notes of one step may be lost.
    """
    tolerance = 0.0 if setting.ranks == 2 else _ROUNDING
    problems = [*_differing_steps(reference, folder, tolerance, faults), *_differing_ends(reference, folder, tolerance)]
    logged, wanted = _logged(folder), _logged(reference)
    if logged - wanted or len({step for _, step in wanted - logged}) > faults:
        problems.append(f"logged steps differ: {sorted(wanted ^ logged)[:5]}")
    torn = [step for step, sums in _checksums(folder).items() if len(sums) > 1]
    if torn:
        problems.append(f"ranks had other weights in steps {torn[:5]}")
    return problems


def _differing_steps(reference: Path, folder: Path, tolerance: float, faults: int) -> Iterator[str]:
    expected, found = _trained(reference), _trained(folder)
    if expected.keys() != found.keys():
        yield f"samples differ: {sorted(expected.keys() ^ found.keys())[:2]}"
    worst = max(abs(loss - other) for key, (loss,) in expected.items() for other in found.get(key, ()))
    if worst > tolerance:
        yield f"losses differ by {worst:g}"
    noted, wanted = ({row[1] for row in rows(at / "steps.jsonl") if row[0] == "step"} for at in (folder, reference))
    if noted - wanted or len(wanted - noted) > faults:
        yield f"steps {sorted(wanted ^ noted)[:3]} are missing"
    alone, struck = (
        {row[1]: row[2:] for row in rows(at / "steps.jsonl") if row[0] == "validation"} for at in (reference, folder)
    )
    if alone.keys() != struck.keys():
        yield f"validations after steps {sorted(alone.keys() ^ struck.keys())} are missing"
    worst = max(
        abs(a - b) for step in alone.keys() & struck.keys() for a, b in zip(alone[step], struck[step], strict=True)
    )
    if worst > _ROUNDING:
        rows_of = [(step, alone[step], struck[step]) for step in alone if alone[step] != struck.get(step)]
        yield f"validations differ by {worst:g}: {rows_of[:2]}"


def _differing_ends(reference: Path, folder: Path, tolerance: float) -> Iterator[str]:
    wanted = torch.load(reference / "weights-0.pt")
    for path in folder.glob("weights-*.pt"):
        found = torch.load(path)
        worst = max((found[name] - value).abs().max().item() for name, value in wanted.items())
        if worst > tolerance:
            yield f"{path.name} differs by {worst:g}"
    ends = [json.loads(path.read_text()) for at in (reference, folder) for path in sorted(at.glob("best-*.json"))]
    if any(end[0] != ends[0][0] or abs(end[1] - ends[0][1]) > _ROUNDING for end in ends):
        yield f"best checkpoints differ: {ends}"


def _trained(folder: Path) -> dict[tuple[Any, ...], set[float]]:
    """Epoch, batch, samples and random numbers of a shard -> losses of its tries."""
    found: dict[tuple[Any, ...], set[float]] = defaultdict(set)
    for path in folder.glob("rank-*.jsonl"):
        for row in rows(path):
            found[row["epoch"], row["batch"], tuple(row["samples"]), tuple(row["random"])].add(row["loss"])
    return found


def _logged(folder: Path) -> set[tuple[str, str]]:
    """Names and steps of what the CSV logger has written."""
    found = set()
    for path in folder.glob("lightning_logs/*/metrics.csv"):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                found |= {(name, row["step"]) for name, value in row.items() if value and name not in ("step", "epoch")}
    return found


def _checksums(folder: Path) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for path in folder.glob("rank-*.jsonl"):
        for row in rows(path):
            found[row["step"]].add(row["weights"])
    return found


def rows(path: Path) -> Iterator[Any]:
    """The lines of a file; a process that is killed may leave half of one."""
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _has_trained(folder: Path, steps: int) -> bool:
    return sum(row[0] == "step" for row in rows(folder / "steps.jsonl")) >= steps


def _gap(steps: list[float], at: float) -> float:
    """The longest pause between two steps that begins within a second of the fault, or includes it."""
    pairs = [(a, b) for a, b in itertools.pairwise(steps) if b > at and a < at + 1.0]
    return max((b - max(a, at) for a, b in pairs), default=0.0)


def _wait_for_all(folder: Path, ranks: int, process: subprocess.Popen[bytes], patience: float) -> None:
    """Until all ranks train again, so that faults do not come faster than they can be mended."""
    deadline = time.monotonic() + patience
    marks = {rank: _size(folder, rank) for rank in range(ranks)}
    while process.poll() is None and time.monotonic() < deadline:
        if all(_size(folder, rank) > mark for rank, mark in marks.items()):
            return
        time.sleep(0.05)


def _size(folder: Path, rank: int) -> int:
    path = folder / f"rank-{rank}.jsonl"
    return path.stat().st_size if path.exists() else 0


def _pid(folder: Path, rank: int) -> int:
    return int((folder / f"pid-{rank}").read_text())


def _signal(folder: Path, rank: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(_pid(folder, rank), number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run jobs until there have been enough faults; 1 if one job differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", type=int, nargs="*", default=list(range(len(SETTINGS))))
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)
    gaps: list[tuple[str, float]] = []
    failed = jobs = 0
    with tempfile.TemporaryDirectory() as place:
        references: dict[Setting, Path] = {}
        while len(gaps) < options.faults:
            setting = SETTINGS[options.settings[jobs % len(options.settings)]]
            if setting not in references:
                references[setting] = Path(place) / f"reference-{len(references)}"
                alone = run(setting, references[setting], None)
                if alone.code:
                    print((references[setting] / "output.txt").read_text()[-3000:])
                    return 1
            folder = Path(place) / f"job-{jobs}"
            outcome = run(setting, folder, rng, min(10, options.faults - len(gaps)), options.kinds)
            jobs += 1
            problems = outcome.problems or compare(references[setting], folder, setting, len(outcome.gaps))
            if outcome.code:
                problems.append(f"exit code {outcome.code}")
            gaps += outcome.gaps
            worst = max((gap for _, gap in outcome.gaps), default=0.0)
            print(
                f"{setting}: {len(outcome.gaps)} faults in {outcome.seconds:.0f} s, worst pause {worst:.2f} s;",
                flush=True,
            )
            print(f"  {problems or 'equal'}", flush=True)
            if problems:
                failed += 1
                print((folder / "output.txt").read_text()[-4000:], flush=True)
    _report(gaps, jobs, failed)
    return int(failed > 0)


def _report(gaps: list[tuple[str, float]], jobs: int, failed: int) -> None:
    print(f"{len(gaps)} faults in {jobs} jobs, {failed} of which differ from one that was left alone.")
    for kind in sorted({kind for kind, _ in gaps}):
        found = [gap for one, gap in gaps if one == kind]
        print(f"  {kind:<22} {len(found):4d}  median {statistics.median(found):5.2f} s  worst {max(found):5.2f} s")


if __name__ == "__main__":
    sys.exit(main())
