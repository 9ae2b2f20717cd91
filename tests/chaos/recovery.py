# SPDX-License-Identifier: Apache-2.0
"""Kill and freeze the ranks of a job that recovers in itself, and compare it with one that was left alone.

    python -m tests.chaos.recovery --faults 200
    python -m tests.chaos.recovery --faults 30 --hosts 3
    python -m tests.chaos.recovery --every 60 --minutes 5
    python -m tests.chaos.recovery --every 60 --minutes 5 --restarts

A run is one job with some ten faults at random moments: of any rank, the first included, of two at once, of one while the
others recover from another, of a replacement while it prepares or joins, segmentation faults, exceptions as of a device
in any part of a step, and ranks that freeze. Afterwards every step must have trained on the same samples with the same
losses, all ranks must have had the same weights in each step, and weights, validations and the best checkpoint in the end
must be those of the job that was left alone. Two ranks give the same numbers to the last digit; a sum over more of them has
another order while one is missing.

On several hosts, which are network namespaces, hosts die and come back, and networks are cut, heal or are slow. With
``--every`` one job has faults at that pace, and its goodput is printed; with ``--restarts`` that of one which does not
recover in itself: all its ranks are restarted, and ``AutoResume`` finds its checkpoint of every hundredth step.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightning_sagemaker.simulator.network import Network, obstacle
from lightning_sagemaker.supervisor import goodput, goodput_picture
from lightning_sagemaker.supervisor.events import FILE
from tests.chaos import device_error, recovery_hosts
from tests.chaos.recovery_compare import compare, rows
from tests.chaos.recovery_gpu import OneGPU
from tests.chaos.recovery_hosts import HostedJob

_TIME_LIMIT = 400.0
_LONGEST = 15.0
"""Seconds that no recovery takes on one host."""
KINDS = (
    "kill",
    "kill",
    "kill the first",
    "kill two",
    "kill during recovery",
    "kill the replacement",
    "freeze",
    "segmentation fault",
    "device error",
)


@dataclass(frozen=True)
class Setting:
    """One kind of job, and how many faults it has."""

    ranks: int
    accumulate: int = 1
    workers: int = 0
    persistent: int = 0
    dropout: float = 0.0
    optimizer: str = "sgd"
    rejoin_timeout: float = 0.0
    samples: int = 1000
    epochs: int = 3
    seconds: float = 0.0
    order: str = "shuffled"
    norm: int = 0
    limit: int = 0
    every: int = 1
    shard: int = 0
    parts: int = 0
    depth: int = 0
    meets: int = 0
    restarts: int = 0
    faults: int = 10
    script: str = "recovery_training.py"

    @property
    def program(self) -> Path:
        """What is trained: with a Trainer, or a loop with Fabric."""
        return Path(__file__).parent / self.script

    @property
    def arguments(self) -> list[str]:
        """Of the training."""
        names = ["accumulate", "workers", "dropout", "optimizer", "samples", "epochs", "seconds", "order", "norm"]
        trainer = ("persistent", "limit", "every", "shard", "parts", "depth", "meets", "restarts")
        names += [name for name in trainer if getattr(self, name) != getattr(Setting, name)]
        return [word for name in names for word in (f"--{name}", str(getattr(self, name)))]


SETTINGS = (
    Setting(2, optimizer="adamw"),
    Setting(3, samples=1500),
    Setting(4, samples=2000),
    Setting(2, accumulate=2),
    Setting(2, workers=2),
    Setting(3, samples=1500, dropout=0.2),
    Setting(2, rejoin_timeout=20),
    Setting(3, samples=1500, dropout=0.2, order="weighted"),
    Setting(3, samples=1500, accumulate=2, norm=1),
    Setting(2, dropout=0.2, optimizer="adamw", norm=1, script="recovery_fabric.py"),
    Setting(3, samples=1500, accumulate=2, workers=1, script="recovery_fabric.py"),
    Setting(3, samples=1200, epochs=4, limit=3, every=2),
    Setting(4, samples=2000, shard=2, depth=2, dropout=0.2, optimizer="adamw"),
    Setting(4, samples=2000, shard=2, parts=1, depth=2, accumulate=2, workers=1),
    Setting(2, samples=6000, optimizer="adamw", faults=20),
    Setting(3, samples=1500, meets=1),
    Setting(3, samples=1500, meets=2, dropout=0.2),
    Setting(3, samples=1500, workers=1, persistent=1),
)
HOST_SETTINGS = (
    Setting(2, samples=3000, optimizer="adamw"),
    Setting(3, samples=4500),
    Setting(4, samples=6000),
    Setting(2, samples=3000, rejoin_timeout=20),
    Setting(4, samples=6000, shard=2, depth=2),
)
"""Longer ones: a cut network takes its time."""


@dataclass
class Outcome:
    """What became of a job.

    Attributes:
        code: Of its end; -1 if it hung.
        seconds: That it took.
        output: What it has printed.
        problems: What differs from the job that was left alone; empty if nothing does.
        gaps: Seconds from each fault to the next optimizer step, and its kind.
        faults: Kind and time of each, in seconds since 1970.

    """

    code: int
    seconds: float
    output: str = ""
    problems: list[str] = field(default_factory=list)
    gaps: list[tuple[str, float]] = field(default_factory=list)
    faults: list[tuple[str, float]] = field(default_factory=list)


def start(
    setting: Setting, folder: Path, *options: str, training: Path | None = None, words: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a job; its output goes to ``output.txt`` in the folder.

    Args:
        setting: Of which kind.
        folder: Where its files go.
        *options: Of the supervisor.
        training: The script; the setting's if None.
        words: Further arguments of that.

    """
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--processes", str(setting.ranks)]
    command += [
        "--rejoin-timeout",
        str(setting.rejoin_timeout),
        "--attempts",
        "9",
        *options,
        str(training or setting.program),
        str(folder),
    ]
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(
            [*command, *setting.arguments, *words], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


class OneHost:
    """A job of this machine's processes."""

    def __init__(self, setting: Setting, folder: Path, *options: str) -> None:
        self._setting, self._folder = setting, folder
        self._process = start(setting, folder, *options)

    @property
    def output(self) -> str:
        """What it has printed."""
        return (self._folder / "output.txt").read_text()

    def poll(self) -> int | None:
        """As of a process."""
        return self._process.poll()

    def inflict(self, kind: str, rng: random.Random, steps: Callable[[], int]) -> None:
        """One fault."""
        inflict(kind, self._folder, self._setting.ranks, rng)

    def kill(self) -> None:
        """End it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class OnGPU(OneGPU):
    """The same on one GPU."""

    def __init__(self, setting: Setting, folder: Path, *options: str) -> None:
        self._setting = setting
        options = ("--rejoin-timeout", str(setting.rejoin_timeout), "--attempts", "9", *options)
        super().__init__(folder, setting.ranks, options, [str(setting.program), str(folder), *setting.arguments])

    def inflict(self, kind: str, rng: random.Random, steps: Callable[[], int]) -> None:
        """One fault."""
        inflict(kind, self._folder, self._setting.ranks, rng)


def start_on(net: Network, setting: Setting, folder: Path, *options: str) -> HostedJob:
    """Start a job on several hosts."""
    options = ("--rejoin-timeout", str(setting.rejoin_timeout), "--attempts", "9", *options)
    command = [str(setting.program), str(folder), *setting.arguments]
    return HostedJob(
        net, folder, setting.ranks // len(net.spaces), options, command, setting.ranks // max(1, setting.shard)
    )


def run(
    setting: Setting,
    folder: Path,
    rng: random.Random | None,
    faults: int = 10,
    kinds: Sequence[str] = KINDS,
    net: Network | None = None,
    every: float | None = None,
    limit: float = _TIME_LIMIT,
) -> Outcome:
    """Run one job.

    Args:
        setting: Of which kind.
        folder: An empty one.
        rng: Of the faults; None leaves the job alone.
        faults: How many.
        kinds: Of which kinds.
        net: Its hosts; None: this machine.
        every: Seconds between two faults; None: soon after the job has mended the last.
        limit: Seconds after which it hangs.

    """
    folder.mkdir()
    begin = last = time.monotonic()
    options = ("--events", str(folder / FILE))
    if net is not None:
        job = start_on(net, setting, folder, *options)
    else:
        one = OnGPU if os.environ.get("LIGHTNING_SAGEMAKER_TEST_ACCELERATOR") == "cuda" else OneHost
        job = one(setting, folder, *options)
    times: list[tuple[str, float]] = []
    try:
        while job.poll() is None and time.monotonic() - begin < limit:
            if rng is None or len(times) >= faults or not _has_trained(folder, 3):
                time.sleep(0.05)
                continue
            time.sleep(rng.uniform(0.3, 2.5) if every is None else max(0.0, last + every - time.monotonic()))
            last = time.monotonic()
            if job.poll() is None:
                kind = rng.choice(kinds)
                times.append((kind, time.time()))
                job.inflict(kind, rng, lambda: _steps(folder))
                _wait_for_all(folder, setting.ranks, job, patience=15 if net is None else 25)
        code = job.poll()
        if code is None:
            _say_where_they_are(folder, setting.ranks)
    finally:
        job.kill()
    outcome = Outcome(-1 if code is None else code, time.monotonic() - begin, job.output)
    if code is None:
        outcome.problems.append(f"it hung for {limit:.0f} s")
    steps = [row[2] for row in rows(folder / "steps.jsonl") if row[0] == "step"]
    outcome.gaps, outcome.faults = [(kind, _gap(steps, at)) for kind, at in times], times
    return outcome


def _say_where_they_are(folder: Path, ranks: int) -> None:
    """The ranks print their threads' tracebacks: they were started with PYTHONFAULTHANDLER."""
    for rank in range(ranks):
        _signal(folder, rank, signal.SIGABRT)
    time.sleep(1.0)


def inflict(kind: str, folder: Path, ranks: int, rng: random.Random) -> None:
    """One fault."""
    first, *others = rng.sample(range(ranks), ranks)
    if kind == "kill the first":
        first = 0
    if kind == "freeze":
        _signal(folder, first, signal.SIGSTOP)
        return
    if kind == "segmentation fault":
        _signal(folder, first, signal.SIGSEGV)
        return
    if kind == "device error":
        device_error.ask(folder, first, rng)
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


def _has_trained(folder: Path, steps: int) -> bool:
    return _steps(folder) >= steps


def _steps(folder: Path) -> int:
    return sum(row[0] == "step" for row in rows(folder / "steps.jsonl"))


def _gap(steps: list[float], at: float) -> float:
    """The longest pause between two steps that begins within a second of the fault, or includes it."""
    pairs = [(a, b) for a, b in itertools.pairwise(steps) if b > at and a < at + 1.0]
    return max((b - max(a, at) for a, b in pairs), default=0.0)


def _wait_for_all(folder: Path, ranks: int, job: OneHost | HostedJob, patience: float) -> None:
    """Until all ranks train again, so that faults do not come faster than they can be mended."""
    deadline = time.monotonic() + patience
    marks = {rank: _size(folder, rank) for rank in range(ranks)}
    while job.poll() is None and time.monotonic() < deadline:
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
    parser.add_argument("--settings", type=int, nargs="*", help="numbers in SETTINGS, or HOST_SETTINGS with --hosts")
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--every", type=float, metavar="S", help="seconds between two faults of one long job")
    parser.add_argument(
        "--restarts", action="store_true", help="all ranks, which resume from a checkpoint, with --every"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="that the job takes, with --every")
    parser.add_argument("--picture", type=Path, help="of the goodput, with --every")
    options = parser.parse_args(arguments)
    os.environ["PYTHONFAULTHANDLER"] = "1"
    if options.hosts == 1:
        return _in_place(options, None)
    if (reason := obstacle()) is not None:
        print(f"Several hosts are left out here: {reason}.")
        return 0
    with recovery_hosts.hosts(options.hosts) as net:
        return _in_place(options, net)


def _in_place(options: argparse.Namespace, net: Network | None) -> int:
    with tempfile.TemporaryDirectory() as place:
        return (_run_jobs if options.every is None else _measure)(options, net, Path(place))


def _run_jobs(options: argparse.Namespace, net: Network | None, place: Path) -> int:
    rng = random.Random(options.seed)
    kinds = options.kinds or (KINDS if net is None else recovery_hosts.KINDS)
    choice = SETTINGS if net is None else [one for one in HOST_SETTINGS if one.ranks % options.hosts == 0]
    settings = [choice[number] for number in options.settings or range(len(choice))]
    gaps: list[tuple[str, float]] = []
    failed = jobs = 0
    references: dict[Setting, Path] = {}
    while len(gaps) < options.faults:
        setting = settings[jobs % len(settings)]
        if setting not in references:
            references[setting] = place / f"reference-{len(references)}"
            alone = run(setting, references[setting], None)
            if alone.code:
                print(alone.output[-3000:])
                return 1
        folder = place / f"job-{jobs}"
        outcome = run(setting, folder, rng, min(setting.faults, options.faults - len(gaps)), kinds, net)
        jobs += 1
        problems = outcome.problems or compare(references[setting], folder, setting, len(outcome.gaps))
        if outcome.code:
            problems.append(f"exit code {outcome.code}")
        gaps += outcome.gaps
        worst = max((gap for _, gap in outcome.gaps), default=0.0)
        if worst > (longest := _LONGEST if net is None else 2 * _LONGEST):
            problems.append(f"a pause of more than {longest:.0f} s: the next fault may have ended a hang")
        print(
            f"{setting}: {len(outcome.gaps)} faults in {outcome.seconds:.0f} s, worst pause {worst:.2f} s;", flush=True
        )
        print(f"  {problems or 'equal'}", flush=True)
        if problems:
            failed += 1
            print(f"  {[(kind, round(gap, 2)) for kind, gap in outcome.gaps]}", flush=True)
            print(outcome.output[-24000:], flush=True)
    _report(gaps, jobs, failed)
    return int(failed > 0)


def _measure(options: argparse.Namespace, net: Network | None, place: Path) -> int:
    """Goodput of one job that has a fault every so many seconds, and ends when its time is over."""
    seconds = options.minutes * 60
    ranks = 2 if net is None else len(net.spaces)
    setting = Setting(ranks, samples=8 * ranks * 1000, epochs=10**6, seconds=seconds, restarts=int(options.restarts))
    kinds = options.kinds or (("kill", "kill the first") if net is None else ("kill a remote rank", "kill the first"))
    faults = max(1, int(seconds / options.every) - 1)  # the last has its whole pause, too
    rng = random.Random(options.seed)
    outcome = run(setting, place / "job", rng, faults, kinds, net, options.every, limit=seconds + 120)
    found = goodput.read(place / "job")
    print("\n".join(goodput.table(found)))
    _report(outcome.gaps, 1, int(outcome.code != 0))
    if options.picture is not None:
        options.picture.write_text(goodput_picture.draw(found))
    if outcome.code:
        print(outcome.output[-4000:])
    return int(outcome.code != 0)


def _report(gaps: list[tuple[str, float]], jobs: int, failed: int) -> None:
    print(f"{len(gaps)} faults in {jobs} jobs, {failed} of which failed or differ from one that was left alone.")
    for kind in sorted({kind for kind, _ in gaps}):
        found = [gap for one, gap in gaps if one == kind]
        print(f"  {kind:<22} {len(found):4d}  median {statistics.median(found):5.2f} s  worst {max(found):5.2f} s")


if __name__ == "__main__":
    sys.exit(main())
