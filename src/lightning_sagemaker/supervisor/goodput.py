# SPDX-License-Identifier: Apache-2.0
"""Where a supervised job's time went, from the coordinator's event log (:mod:`.events`).

Steps of a full quorum count at full speed. Recovery lasts from the last committed step before a loss until the next
committed step. A step with fewer ranks has the same samples, so it counts too, but takes longer.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.supervisor.events import FILE

STARTING, TRAINING, SMALLER = "starting", "training", "in smaller quorum"
RECOVERING, WAITING, ENDING = "recovering", "waiting for a replacement", "ending"
RESTARTING = "between restarts"
CAUSES = (STARTING, TRAINING, SMALLER, RECOVERING, WAITING, ENDING, RESTARTING)


@dataclass(frozen=True)
class Span:
    """A part of a job's time.

    Attributes:
        cause: One of :data:`CAUSES`.
        begin: Seconds since 1970.
        end: Seconds since 1970.

    """

    cause: str
    begin: float
    end: float


@dataclass(frozen=True)
class Goodput:
    """Goodput of one job, including its restarts.

    Attributes:
        spans: Spans of the job's time, in order and without gaps.
        losses: Time of each loss of a rank, in seconds since 1970.
        steps: Number of committed steps.
        smaller_steps: Number of these that a smaller quorum has run, by the coordinator's event log.

    """

    spans: tuple[Span, ...]
    losses: tuple[float, ...]
    steps: int
    smaller_steps: int

    @property
    def total(self) -> float:
        """Seconds."""
        return self.spans[-1].end - self.spans[0].begin if self.spans else 0.0

    @property
    def seconds(self) -> Mapping[str, float]:
        """Cause -> seconds."""
        found: dict[str, float] = defaultdict(float)
        for span in self.spans:
            found[span.cause] += span.end - span.begin
        return found

    @property
    def share(self) -> float:
        """Goodput: the fraction of all time spent in committed steps at full speed."""
        return self.seconds.get(TRAINING, 0.0) / self.total if self.total else 0.0

    @property
    def share_after_start(self) -> float:
        """Goodput of the time after the first step."""
        rest = self.total - self.seconds.get(STARTING, 0.0)
        return self.seconds.get(TRAINING, 0.0) / rest if rest > 0 else 0.0

    @property
    def worth(self) -> float:
        """Goodput if steps in a smaller quorum count with their full-speed duration."""
        full = self.steps - self.smaller_steps
        training = self.seconds.get(TRAINING, 0.0)
        return self.share * (1 + self.smaller_steps / full) if full > 0 and training else self.share


def read(place: Path) -> Goodput:
    """Analyze an event log, given as the file or its folder.

    Raises:
        LaunchError: If there is no event log, or it is too short.

    """
    path = place / FILE if place.is_dir() else place
    if not path.is_file():
        raise LaunchError(
            f"{path} does not exist. HINT: 'lightning-sagemaker supervise --events FILE' writes it; in a SageMaker job it is"
            " among the outputs of the first host."
        )
    rows = [row for row in map(_row, path.read_text().splitlines()) if row is not None]
    if len(rows) < 2:
        raise LaunchError(f"{path} contains {len(rows)} event(s). HINT: pass the file of 'supervise --events'.")
    return analyze(rows)


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # the last line of a host that was killed
        return None
    return row if isinstance(row, dict) and "event" in row and "time" in row else None


def analyze(rows: Sequence[Mapping[str, Any]]) -> Goodput:
    """Attribute a job's time to causes.

    Args:
        rows: Events in order.

    """
    spans: list[Span] = []
    losses: list[float] = []
    steps = smaller = before = world = 0
    cause, begin = STARTING, float(rows[0]["time"])

    def turn(to: str, at: float) -> None:
        nonlocal cause, begin
        at = max(at, begin)
        if to != cause:
            if at > begin:
                spans.append(Span(cause, begin, at))
            cause, begin = to, at

    for row in rows:
        event, at = row["event"], float(row["time"])
        if "step" in row and event not in ("start", "end"):
            done = max(0, int(row["step"]) - before)
            steps, before = steps + done, int(row["step"])
            smaller += done if cause == SMALLER else 0
        if event == "start":
            before, world = 0, int(row["world_size"])
            turn(STARTING, at)
        elif event == "resumed":
            turn(TRAINING if int(row["ranks"]) == world else SMALLER, at)
        elif event == "lost":
            losses.append(at)
            if cause not in (STARTING, ENDING):
                turn(RECOVERING, float(row["since"]))
        elif event == "joining":
            turn(RECOVERING, at)
        elif event == "waiting":
            turn(WAITING, at)
        elif event == "quorum":
            turn(STARTING if cause == STARTING else RECOVERING, at)
        elif event in ("end", "finished"):
            turn(ENDING, at)
        elif event == "close":
            turn(RESTARTING, at)
    last = float(rows[-1]["time"])
    if last > begin:
        spans.append(Span(cause, begin, last))
    return Goodput(tuple(spans), tuple(losses), steps, smaller)


def table(goodput: Goodput) -> Iterable[str]:
    """Lines to print."""
    yield f"{'cause':<26}  {'seconds':>9}  {'share':>7}"
    for cause in CAUSES:
        if seconds := goodput.seconds.get(cause, 0.0):
            yield f"{cause:<26}  {seconds:9.1f}  {seconds / goodput.total:7.2%}"
    yield f"{'all':<26}  {goodput.total:9.1f}"
    yield ""
    yield f"{len(goodput.losses)} ranks were lost; {goodput.steps} steps count, {goodput.smaller_steps} in a smaller quorum."
    yield (
        f"goodput {goodput.share:.2%}, {goodput.share_after_start:.2%} of the time after the first step;"
        f" {goodput.worth:.2%} if steps in a smaller quorum count at their full-speed duration"
    )
