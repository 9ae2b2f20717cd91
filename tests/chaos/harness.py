# SPDX-License-Identifier: Apache-2.0
"""Interrupts a real job of two processes in every way, again and again, and compares it with one that was left alone."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from lightning_sagemaker.simulator import network

WORKER = Path(__file__).with_name("worker.py")
MARK = "CHAOS_JOB"
SAVE_EVERY = 0.5
"""Seconds between checkpoints of the job."""
END = 20.0
"""Seconds after an event within which every process must have ended."""
START = 60.0
"""Seconds within which a job must make its first step."""


@dataclasses.dataclass
class Outcome:
    """What one interruption did."""

    event: str
    returncode: int | None
    seconds_to_end: float
    hung: bool
    lost_steps: int = 0
    lost_seconds: float = 0.0
    seconds_to_start: float = 0.0
    lines: tuple[int, int] = (0, 0)
    """Of the first rank's record: those written in this start."""


class Job:
    """One start of the job: torchrun and its two processes, or two simulated hosts with a network each."""

    def __init__(self, folder: Path, steps: int, number: int, hosts: bool = False) -> None:
        self.folder, self.mark = folder, f"{folder}-{number}"
        self._log = (folder / "log").open("a")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "SAVE_EVERY": str(SAVE_EVERY), MARK: self.mark}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        if hosts:
            command = [sys.executable, "-m", "lightning_sagemaker.cli", "local", "--hosts", "2", "--network", "netns"]
            command += ["--processes-per-host", "1", "--distribution", "torch_distributed"]
            command += ["--root", str(folder / "hosts"), "--", "python"]
        self.began = time.monotonic()
        self.launcher = subprocess.Popen(
            [*command, str(WORKER), str(folder), str(steps)],
            env=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def pids(self) -> dict[str, int]:
        """Rank -> process, and the launcher."""
        found = {"launcher": self.launcher.pid}
        for pid in _marked(self.mark):
            with contextlib.suppress(OSError):
                if WORKER.name.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    continue
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if b"RANK=0" in variables:
                    found["rank 0"] = pid
                elif b"RANK=1" in variables:
                    found["rank 1"] = pid
        return found

    def wait(self, seconds: float) -> float | None:
        """Seconds until every process has ended; None if one has not."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            if self.launcher.poll() is not None and not _marked(self.mark):
                return time.monotonic() - begin
            time.sleep(0.05)
        return None

    def kill(self) -> None:
        """End what is left of it."""
        for pid in _marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.launcher.wait()
        self._log.close()


def _marked(mark: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return found


def lines_of(folder: Path, rank: int = 0) -> list[dict]:
    """What a rank has written so far; a line that was cut short is none."""
    path = folder / f"rank-{rank}.jsonl"
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def _signal(number: signal.Signals, *names: str) -> Callable[[Job, random.Random], None]:
    def send(job: Job, random_: random.Random) -> None:
        pids = job.pids()
        for name in names:
            with contextlib.suppress(ProcessLookupError, KeyError):
                os.kill(pids[name], number)

    return send


def _one_after_the_other(job: Job, random_: random.Random) -> None:
    _signal(signal.SIGTERM, "rank 1")(job, random_)
    time.sleep(random_.uniform(0, 0.3))
    _signal(signal.SIGTERM, "rank 0")(job, random_)


def _container(job: Job, random_: random.Random) -> None:
    """The launcher is the container's first process: with it, all others are killed."""
    for pid in _marked(job.mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _host(number: signal.Signals) -> Callable[[Job, random.Random], None]:
    """All processes of the second host."""

    def send(job: Job, random_: random.Random) -> None:
        for pid in _marked(job.mark):
            with contextlib.suppress(OSError):
                if b"SM_CURRENT_HOST=algo-2" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, number)

    return send


GENTLE = {
    "SIGTERM to rank 0": _signal(signal.SIGTERM, "rank 0"),
    "SIGTERM to rank 1": _signal(signal.SIGTERM, "rank 1"),
    "SIGTERM to both": _signal(signal.SIGTERM, "rank 0", "rank 1"),
    "SIGTERM to one, then the other": _one_after_the_other,
    "SIGTERM to the launcher": _signal(signal.SIGTERM, "launcher"),
    "SIGUSR1 to rank 1": _signal(signal.SIGUSR1, "rank 1"),
}
"""Events after which all work must be there."""
HARSH = {
    "SIGKILL of rank 0": _signal(signal.SIGKILL, "rank 0"),
    "SIGKILL of rank 1": _signal(signal.SIGKILL, "rank 1"),
    "SIGKILL of the container": _container,
}
"""Events after which the work since the last checkpoint is lost."""
DAMAGE = ("newest checkpoint cut short", "bit flipped in the newest checkpoint")
"""Done to the files after a kill: the checkpoint before the newest must serve."""
FULL = "disk full"


def _cut(job: Job, random_: random.Random) -> None:
    """The second host's link goes down: no connection is closed, nothing arrives any more."""
    switch = f"{network._PREFIX}-{job.launcher.pid}-switch"
    subprocess.run(["ip", "-n", switch, "link", "set", "port2", "down"], check=True)


def _slow(job: Job, random_: random.Random) -> None:
    """A thousandth of a usual network; then the job is asked to stop."""
    space = f"{network._PREFIX}-{job.launcher.pid}-2"
    shape = ["tbf", "rate", "1mbit", "burst", "16kb", "latency", "400ms"]
    subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", network._INTERFACE, "root", *shape], check=True)
    time.sleep(1)
    _signal(signal.SIGTERM, "rank 0")(job, random_)


OF_HOSTS = {
    "SIGTERM to a host": _host(signal.SIGTERM),
    "SIGKILL of a host": _host(signal.SIGKILL),
    "network cut": _cut,
    "network slowed, then SIGTERM": _slow,
}
"""Where there are two."""
EVENTS = (*GENTLE, *HARSH, *DAMAGE, FULL, "SIGTERM while starting")


class Chaos:
    """A job that is interrupted until it has made its steps.

    Args:
        folder: For the job, and for one that is left alone.
        steps: To make.
        seed: Of the moments.
        hosts: Whether each process is on a simulated host of its own.

    """

    def __init__(self, folder: Path, steps: int, seed: int, hosts: bool = False) -> None:
        self.hosts = hosts
        self.steps, self.random = steps, random.Random(seed)
        self.calm, self.folder = folder / "calm", folder / "chaos"
        for place in (self.calm, self.folder):
            (place / "checkpoints").mkdir(parents=True)
        self.outcomes: list[Outcome] = []
        self._starts = 0
        self.has_small_disk = _small_disk(self.folder / "checkpoints")

    def close(self) -> None:
        """Give back the small disk."""
        if self.has_small_disk:
            subprocess.run(["umount", "-l", str(self.folder / "checkpoints")], check=False)

    def reference(self) -> None:
        """Train without interruptions."""
        job = Job(self.calm, self.steps, 0, self.hosts)
        ended = job.wait(600)
        job.kill()
        assert ended is not None, (self.calm / "log").read_text()[-3000:]
        assert (self.calm / "done").exists(), (self.calm / "log").read_text()[-3000:]

    def interrupt(self, event: str, steps: int | None = None) -> Outcome:
        """Start the job, let it make some steps (by default a random number), and let ``event`` happen."""
        before = lines_of(self.folder)
        job = self._start()
        outcome = Outcome(event, None, 0.0, False)
        try:
            if event == "SIGTERM while starting":
                time.sleep(self.random.uniform(0.5, 4.0))
            else:
                self._wait_for_steps(job, len(before), steps or self.random.randint(3, 25))
            outcome.seconds_to_start = self._first_step_after(len(before), job)
            filler = self._apply(event, job)
            ended = job.wait(END)
            outcome.hung, outcome.seconds_to_end = ended is None, END if ended is None else ended
            outcome.returncode = job.launcher.poll()
        finally:
            job.kill()
        outcome.lines = (len(before), len(lines_of(self.folder)))
        if filler is not None:
            filler.unlink()
        if event in DAMAGE:
            self._damage(event)
        self.outcomes.append(outcome)
        return outcome

    def finish(self) -> None:
        """Let the job come to its end, then see what each interruption has cost."""
        job = self._start()
        ended = job.wait(600)
        job.kill()
        assert ended is not None
        assert (self.folder / "done").exists(), (self.folder / "log").read_text()[-3000:]
        self._count_losses()

    def _count_losses(self) -> None:
        """Work that was done twice, by the interruption that lost it."""
        lines = lines_of(self.folder)
        for outcome in self.outcomes:
            first, end = outcome.lines
            done, after = lines[first:end], lines[end:]
            if done and after and after[0]["step"] <= done[-1]["step"]:
                again = next((line for line in reversed(done) if line["step"] == after[0]["step"]), done[0])
                outcome.lost_steps = done[-1]["step"] - after[0]["step"] + 1
                outcome.lost_seconds = done[-1]["time"] - again["time"]

    def wrong_steps(self) -> list[str]:
        """Steps, of any start, whose loss or samples are not those of the calm job; and steps that were never made."""
        wrong = []
        for rank in (0, 1):
            expected = {line["step"]: (line["loss"], line["samples"]) for line in lines_of(self.calm, rank)}
            made = set()
            for line in lines_of(self.folder, rank):
                made.add(line["step"])
                if (line["loss"], line["samples"]) != expected[line["step"]]:
                    wrong.append(f"rank {rank}, step {line['step']}")
            wrong += [f"rank {rank}, step {step} missing" for step in expected.keys() - made]
        return wrong

    def _start(self) -> Job:
        self._starts += 1
        return Job(self.folder, self.steps, self._starts, self.hosts)

    def _wait_for_steps(self, job: Job, before: int, steps: int) -> None:
        deadline = time.monotonic() + START
        while len(lines_of(self.folder)) < before + steps:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-3000:]
            if job.launcher.poll() is not None:
                return  # it has made all steps
            time.sleep(0.02)

    def _first_step_after(self, before: int, job: Job) -> float:
        lines = lines_of(self.folder)
        return lines[before]["time"] - job.began if len(lines) > before else 0.0

    def _apply(self, event: str, job: Job) -> Path | None:
        if event == FULL:
            filler = self.folder / "checkpoints" / "filler"
            with contextlib.suppress(OSError), filler.open("wb") as file:
                while True:
                    file.write(bytes(4096))
            return filler
        kinds = {**GENTLE, **HARSH, **OF_HOSTS}
        kinds.get(event, _signal(signal.SIGTERM, "launcher") if "starting" in event else _container)(job, self.random)
        return None

    def _damage(self, event: str) -> None:
        found = sorted((self.folder / "checkpoints").glob("auto-step=*.ckpt"), key=lambda path: _step(path))
        if len(found) < 2:
            return  # there is none before it, so the job would begin anew: right, but not what is looked at
        size = found[-1].stat().st_size
        with found[-1].open("r+b") as file:
            if "cut" in event:
                file.truncate(self.random.randrange(size))
            else:
                place = self.random.randrange(size // 10, size * 9 // 10)
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ 1 << self.random.randrange(8)]))


def _step(path: Path) -> int:
    return int(path.stem.rpartition("=")[2])


def _small_disk(folder: Path) -> bool:
    """Whether ``folder`` could be made a disk that is soon full; needs the rights to mount."""
    if os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def table(outcomes: list[Outcome]) -> str:
    """Results by event."""
    by_event: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_event[outcome.event].append(outcome)
    titles = (
        "event",
        "cases",
        "hangs",
        "exit codes",
        "worst seconds to the end",
        "worst seconds to the first step",
        "most seconds lost",
    )
    rows = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for event, found in by_event.items():
        codes = sorted({str(one.returncode) for one in found})
        rows.append(
            f"| {event} | {len(found)} | {sum(one.hung for one in found)} | {', '.join(codes)}"
            f" | {max(one.seconds_to_end for one in found):.1f} | {max(one.seconds_to_start for one in found):.1f}"
            f" | {max(one.lost_seconds for one in found):.2f} |"
        )
    return "\n".join(rows)
