# SPDX-License-Identifier: Apache-2.0
"""Interrupts trainings that log to a real MLflow server: ``python -m tests.chaos.tracked --cases 50``.

Each training is ended again and again, at random times, and is one run in MLflow that has each step once, with the value of
a training that was left alone.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.mlflow_server import PACKAGES, Line, Server, environment
from tests.forked import run_forked

WORKER = Path(__file__).with_name("tracked_worker.py")
EVENTS = {
    "SIGTERM": "KILLED",
    "SIGKILL": "KILLED",
    "SIGKILL of training and sender": "RUNNING",
    "SIGKILL of training and sender, and its disk is lost": "RUNNING",
    "SIGKILL of the sender, then SIGTERM": "RUNNING",
    "SIGTERM while no answer arrives": None,
    "SIGKILL while the server is down": None,
    "SIGTERM while the server is silent": None,
}
"""What happens -> the run's status after it; None where the server cannot know."""
_MODES = {"no answer arrives": "deaf", "is down": "down", "is silent": "silent"}


class Tracked:
    """One training and its run.

    Args:
        server: That was started.
        folder: Whose name is the experiment's.
        steps: Of the training.
        seed: Of when it is interrupted.

    """

    def __init__(self, server: Server, folder: Path, steps: int, seed: int) -> None:
        self.folder, self.steps = folder, steps
        self._random, self._line = random.Random(seed), Line(server.address)
        folder.mkdir()
        sys.path.append(str(PACKAGES))
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(server.address)

    def start(self, event: str = "none", seconds: float = 0.0) -> int | None:
        """Start or go on, until the event or the end; the exit code."""
        for words, mode in _MODES.items():
            if event.endswith(words):
                self._line.mode = mode
        self.wait_for_sender()
        arguments = [str(self.folder), self._line.address, str(self.steps), event, str(seconds)]
        code = run_forked([str(WORKER), *arguments], 0, environment(), self.folder / "log", 560)
        self._line.mode = "up"
        if event.endswith("disk is lost"):
            self.wait_for_sender()
            shutil.rmtree(self.folder / "journal", ignore_errors=True)
        return code

    def interrupt(self, event: str) -> list[str]:
        """Let something happen; what is wrong after it."""
        code = self.start(event, self._random.uniform(0.2, 1.5))
        expected = EVENTS[event]
        if code == 0 or expected is None or expected == "RUNNING":
            return []
        self.send_rest()
        found = self.run.info.status if self.runs else "no run"
        if found == "FINISHED" and len(self.series("loss")) == self.steps:  # it came after the last step
            return []
        return [] if found == expected else [f"{event}: {found}"]

    def finish(self) -> list[str]:
        """Train to the end; what is wrong with the run."""
        code = self.start()
        self.send_rest()
        wrong = [] if code == 0 else [f"exit code {code}: {(self.folder / 'log').read_text()[-1500:]}"]
        if len(self.runs) != 1:
            return [*wrong, f"{len(self.runs)} runs"]
        if self.run.info.status != "FINISHED":
            wrong.append(f"status {self.run.info.status}")
        return wrong

    @property
    def runs(self) -> list:
        experiment = self.client.get_experiment_by_name(self.folder.name)
        return [] if experiment is None else list(self.client.search_runs([experiment.experiment_id]))

    @property
    def run(self):
        return self.runs[0]

    def series(self, name: str) -> list[tuple[int, float]]:
        """Steps and values as the server has them, in the order of steps."""
        return sorted((one.step, one.value) for one in self.client.get_metric_history(self.run.info.run_id, name))

    def differs(self, reference: Tracked) -> list[str]:
        """Where the run is not that of a training that was left alone.

        Lightning logs ``epoch`` twice in a step with a validation. A training that was killed between the two logs both
        again, and the second is one of a step that was there.
        """
        wrong = []
        for name in ("loss", "val_loss", "epoch"):
            here, there = Counter(self.series(name)), Counter(reference.series(name))
            doubled, missing = sorted((here - there).elements()), sorted(there.keys() - here.keys())
            if doubled or missing or (name != "epoch" and here != there):
                wrong.append(
                    f"{name}: doubled {doubled[:5]}, missing {missing[:5]}, {here.total()} of {there.total()} values"
                )
        return wrong

    def send_rest(self) -> None:
        """As ``lightning-sagemaker metrics --send`` does: on a busy machine a training may not wait for all to be sent."""
        from lightning_sagemaker.loggers.sender import send_all

        self.wait_for_sender()
        assert [error for _, error in send_all(self.folder / "journal") if error] == []

    def wait_for_sender(self, seconds: float = 240.0) -> None:
        """Until none is at work."""
        from lightning_sagemaker.loggers.journal import journals

        for journal in journals(self.folder / "journal"):
            with journal.alone(seconds):
                pass

    def close(self) -> None:
        self._line.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--per-run", type=int, default=10)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    wrong: list[str] = []
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            server.wait()
            reference = Tracked(server, Path(folder) / "reference", args.steps, 0)
            wrong += reference.finish()
            for first in range(0, args.cases, args.per_run):
                tracked = Tracked(server, Path(folder) / f"run-{first}", args.steps, args.seed + first)
                for number in range(first, min(first + args.per_run, args.cases)):
                    event = [*EVENTS][number % len(EVENTS)]
                    begin = time.monotonic()
                    found = tracked.interrupt(event)
                    counts[event] += 1
                    wrong += found
                    print(f"{number + 1}: {event}: {time.monotonic() - begin:.0f} s {found or ''}", flush=True)
                ended = tracked.finish()
                ended = ended or tracked.differs(reference)
                print(f"run of {args.steps} steps: {ended or 'as one that was left alone'}", flush=True)
                wrong += ended
                tracked.close()
        finally:
            server.close()
    for event, count in counts.items():
        print(f"{count:4} {event}")
    print(f"{sum(counts.values())} interruptions, wrong: {wrong or 'nothing'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
