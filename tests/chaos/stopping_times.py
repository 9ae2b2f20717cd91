# SPDX-License-Identifier: Apache-2.0
"""How long a signal takes to end all processes, by what they are doing and how long their steps are.

``python -m tests.chaos.stopping_times [--quick]`` prints a table: seconds from SIGTERM at one rank to the exit of all, in
bold where that is more than is promised. A user's script: the callbacks with default arguments and a folder. Validation is
fast where it is not what is measured, and comes before training, in the sanity check.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, is_contract_variable
from tests.forked import run_forked

LENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)
PHASES = ("sanity check", "training", "accumulation", "validation", "epoch end", "test", "predict", "setup")
LATENCY, LEAVING = 2.0, 1.0
"""Promised: seconds to the last step if steps are shorter, and from there to the exit."""
_CLOCK = "clock"
"""A phase without a signal."""
_FAST = 0.001
_ACCUMULATED = 8
_LIMIT = 60.0
_STARTING = 60.0
_KILLED = 99


@dataclass(frozen=True)
class Case:
    """One run that is interrupted.

    Args:
        phase: One of :data:`PHASES`.
        seconds: Length of a step of that phase.
        ranks: Processes; the last is asked to stop.
        limit: Seconds after the signal, or after what is promised if that is later, in which it is killed.
        settled: Seconds in the phase before the signal, so that what is learnt from its first steps counts.

    """

    phase: str
    seconds: float
    ranks: int = 1
    limit: float = _LIMIT
    settled: float = 1.5

    @property
    def step(self) -> float:
        """Seconds of what cannot be left in between: an optimizer step, or a batch of an evaluation."""
        return self.seconds * (_ACCUMULATED if self.phase == "accumulation" else 1)

    @property
    def promised(self) -> float:
        """Seconds from the signal to the exit, at most."""
        return max(self.step, LATENCY) + LEAVING

    @property
    def patience(self) -> float:
        """Seconds from the signal after which the processes are killed."""
        return max(self.limit, self.promised + 10)


@dataclass(frozen=True)
class Stop:
    """What was seen.

    Args:
        case: That was run.
        last_step: Seconds from the signal to the end of the last step of any kind; ``None`` if none ended after it.
        gone: Seconds from the signal to the exit of all processes; ``None``: it was killed, or ended by itself.
        output: Of the processes.

    """

    case: Case
    last_step: float | None
    gone: float | None
    output: str

    @property
    def is_in_time(self) -> bool:
        """Whether both are as promised."""
        case = self.case
        steps_end = (
            self.last_step is None or self.last_step <= max(case.step, LATENCY) + 0.2
        )  # what a step costs itself
        return self.gone is not None and self.gone <= case.promised and steps_end

    def __str__(self) -> str:
        text = f">{self.case.patience:.0f}" if self.gone is None else f"{self.gone:.1f}"
        return text if self.is_in_time else f"**{text}**"


def measure(case: Case) -> Stop:
    """Run, interrupt, and look."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = _run(folder, {"case": asdict(case)}, case.ranks, _STARTING + case.seconds * 12 + case.patience)
        ended = time.time()
        output = (folder / "output").read_text()
        asked = _read_time(folder / "signal")
        if asked is None:
            raise RuntimeError(f"{case} ended with {code} before it was asked to:\n{output[-4000:]}")
        steps = [found for path in folder.glob("step-*") if (found := _read_time(path)) is not None and found > asked]
        is_stopped = code not in (None, 0) and not (folder / "killed").exists()
        return Stop(case, max(steps) - asked if steps else None, ended - asked if is_stopped else None, output)


@dataclass(frozen=True)
class Clock:
    """Checkpoints that were written by the clock: how many, and the longest time without one."""

    count: int
    longest_gap: float


def measure_clock(save_every: float = 5.0, seconds: float = 1.0, steps: int = 32) -> Clock:
    """Train for a while with steps of ``seconds``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = {"case": asdict(Case(_CLOCK, seconds)), "save_every": save_every, "steps": steps}
        code = _run(folder, job, 1, _STARTING + 3 * seconds * steps)
        assert code == 0, (folder / "output").read_text()[-4000:]
        written = [
            path for path in (folder / "checkpoints").iterdir() if re.fullmatch(r"auto-step=\d+\.ckpt", path.name)
        ]
        begin, end = _read_time(folder / "begin"), _read_time(folder / "end")
        times = sorted([begin, *(path.stat().st_mtime for path in written), end])
        return Clock(len(written), max(after - before for before, after in itertools.pairwise(times)))


def _run(folder: Path, job: dict[str, Any], ranks: int, timeout: float) -> int | None:
    environment = {name: value for name, value in os.environ.items() if not is_contract_variable(name)}
    path = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = ["-m", "tests.chaos.stopping_times", "--job", json.dumps(job), "--folder", str(folder)]
    return run_forked(command, ranks if ranks > 1 else 0, environment, folder / "output", timeout)


def _write_time(path: Path) -> None:
    path.write_bytes(struct.pack("d", time.time()))


def _read_time(path: Path) -> float | None:
    return struct.unpack("d", path.read_bytes())[0] if path.is_file() and path.stat().st_size else None


def work(job: dict[str, Any], folder: Path) -> None:
    """The script that is interrupted."""
    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer
    from torch.utils.data import DataLoader

    from lightning_sagemaker import AutoResume, SpotInterruption

    case = Case(**job["case"])
    phase, rank = case.phase, int(os.environ.get("RANK", "0"))
    strike = _Strike(folder, case, rank)
    evaluated = phase in ("sanity check", "validation", "test", "predict")
    training, evaluating = (_FAST, case.seconds) if evaluated else (case.seconds, _FAST)
    file = os.open(folder / f"step-{rank}", os.O_WRONLY | os.O_CREAT)

    def step(seconds: float) -> None:
        time.sleep(seconds)
        os.pwrite(file, struct.pack("d", time.time()), 0)

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def setup(self, stage: str) -> None:
            if phase == "setup":
                strike.now()
                time.sleep(case.seconds)

        def training_step(self, batch: Any, index: int) -> Any:
            step(training)
            return self.layer(batch).square().mean()

        def validation_step(self, batch: Any, index: int) -> None:
            step(evaluating)
            self.log("val_loss", self.layer(batch).square().mean(), sync_dist=True)

        test_step = validation_step

        def predict_step(self, batch: Any, index: int) -> Any:
            step(evaluating)
            return self.layer(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    class Strikes(Callback):
        def on_train_start(self, *_: Any) -> None:
            _write_time(folder / "begin")

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            if phase == "training" or (phase == "accumulation" and index % _ACCUMULATED == 1):
                strike.when_settled(index)

        def on_validation_batch_start(self, trainer: Any, module: Any, batch: Any, index: int, *_: Any) -> None:
            if phase == ("sanity check" if trainer.sanity_checking else "validation"):
                strike.when_settled(index)

        def on_test_batch_start(self, trainer: Any, module: Any, batch: Any, index: int, *_: Any) -> None:
            strike.when_settled(index)

        on_predict_batch_start = on_test_batch_start

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            if phase == "epoch end":
                strike.when_settled(trainer.current_epoch + 1)

    loader = DataLoader(torch.ones(200_000, 4), batch_size=1)
    spot = SpotInterruption(folder / "checkpoints")
    if "save_every" in job:
        spot = SpotInterruption(folder / "checkpoints", timedelta(seconds=job["save_every"]), keep=100)
    in_an_epoch = {"validation": 2, "epoch end": max(2, min(100, int(0.5 / case.seconds)))}
    trainer = Trainer(
        accelerator="cpu",
        strategy="sagemaker" if case.ranks > 1 else "auto",
        max_epochs=-1,
        max_steps=job.get("steps", -1),
        limit_train_batches=in_an_epoch.get(phase),
        limit_val_batches=None if phase in ("validation", "sanity check") else 20,
        num_sanity_val_steps=-1 if phase == "sanity check" else 2,
        accumulate_grad_batches=_ACCUMULATED if phase == "accumulation" else 1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        callbacks=[spot, AutoResume(folder / "checkpoints"), Strikes()],
    )
    if phase == "test":
        trainer.test(Model(), loader)
    elif phase == "predict":
        trainer.predict(Model(), loader, return_predictions=False)
    else:
        trainer.fit(Model(), loader, loader)
    _write_time(folder / "end")


class _Strike:
    """The signal, in the middle of a step; and the end of a process that does not stop.

    Args:
        folder: Where its time is written.
        case: Says when.
        rank: Of this process; only the last is asked.

    """

    def __init__(self, folder: Path, case: Case, rank: int) -> None:
        self._folder, self._case, self._is_struck = folder, case, rank == case.ranks - 1
        self._first = 0.0
        self._done = False

    def when_settled(self, index: int) -> None:
        """Strike once the phase has gone on for a while."""
        self._first = self._first or time.monotonic()
        if index >= 1 and time.monotonic() - self._first >= self._case.settled:
            self.now()

    def now(self) -> None:
        """Strike half a step from now, once."""
        if self._done:
            return
        self._done = True
        self._later(self._case.seconds / 2, self._strike if self._is_struck else lambda: None)
        self._later(self._case.seconds / 2 + self._case.patience, self._kill)

    def _strike(self) -> None:
        _write_time(self._folder / "signal")
        os.kill(os.getpid(), signal.SIGTERM)

    def _kill(self) -> None:
        (self._folder / "killed").touch()
        os._exit(_KILLED)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, do)
        timer.daemon = True
        timer.start()


def table(stops: Iterable[Stop]) -> str:
    """Markdown: a row for each phase and number of ranks, a column for each length."""
    found = {(stop.case.phase, stop.case.ranks, stop.case.seconds): stop for stop in stops}
    lengths = sorted({seconds for _, _, seconds in found})
    rows = [["phase", "ranks", *(f"{seconds:g} s" for seconds in lengths)], ["---"] * (2 + len(lengths))]
    for phase, ranks in dict.fromkeys((phase, ranks) for phase, ranks, _ in found):
        rows.append([phase, str(ranks), *(str(found.get((phase, ranks, seconds), "")) for seconds in lengths)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="steps of 1 ms and 1 s, one rank")
    parser.add_argument(
        "--at-once", type=int, default=3, help="runs at the same time: most of them sleep (%(default)s)"
    )
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        work(json.loads(args.job), args.folder)
        return
    lengths, ranks = ((0.001, 1.0), (1,)) if args.quick else (LENGTHS, (1, 2))
    cases = [Case(phase, seconds, count) for count in ranks for phase in PHASES for seconds in lengths]
    with ProcessPoolExecutor(args.at_once) as pool:  # each has a process of its own that forks
        clock = pool.submit(measure_clock)
        stops = list(pool.map(measure, cases))
        print(table(stops))
        late = sum(not stop.is_in_time for stop in stops)
        print(f"\n{late} of {len(stops)} later than promised: a step or {LATENCY:g} s, and {LEAVING:g} s to leave.")
        saved = clock.result()
        print(
            f"save_every 5 s, steps of 1 s: {saved.count} checkpoints in 32 s, at most {saved.longest_gap:.1f} s apart."
        )


if __name__ == "__main__":
    main()
