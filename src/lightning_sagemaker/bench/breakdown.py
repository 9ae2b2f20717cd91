# SPDX-License-Identifier: Apache-2.0
"""Where the time of an optimizer step goes: data, forward, backward, exposed communication, optimizer, and the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lightning_sagemaker.bench.intervals import Interval, clip, difference, length, union
from lightning_sagemaker.text_files import write_text

PARTS = ("data", "forward", "backward", "communication", "optimizer", "other")
"""Parts of a step, in the order in which they are shown. ``communication`` is that not overlapped with computation;
``other`` is the training loop, callbacks and logging."""
_FILE = "breakdown-{rank}.json"


@dataclass(frozen=True)
class Breakdown:
    """Mean seconds of an optimizer step's parts on one rank.

    Attributes:
        rank: Global rank.
        seconds: Part -> seconds; they add up to ``traced_seconds``.
        traced_seconds: Mean step time while the profiler recorded.
        untraced_seconds: Median step time just before, with the profiler off.
        steps: Number of recorded steps.

    """

    rank: int
    seconds: Mapping[str, float]
    traced_seconds: float
    untraced_seconds: float
    steps: int

    def share(self, part: str) -> float:
        """Fraction of the step that a part takes."""
        return self.seconds[part] / self.traced_seconds

    def save(self, folder: Path) -> None:
        """Write ``breakdown-RANK.json``; a reader sees the complete file or none."""
        write_text(folder / _FILE.format(rank=self.rank), json.dumps(asdict(self)))


@dataclass(frozen=True)
class Recorded:
    """Intervals that a profiler recorded on one rank, all in one unit of time.

    Attributes:
        steps: One interval for each optimizer step.
        ranges: Part -> its intervals, which may be nested in those of other parts.
        communication: Intervals in which a collective was running.
        computation: Intervals in which an operator or a kernel was running.
        excluded: Intervals that belong to no step, such as a validation.

    """

    steps: Sequence[Interval]
    ranges: Mapping[str, Sequence[Interval]]
    communication: Sequence[Interval]
    computation: Sequence[Interval]
    excluded: Sequence[Interval] = ()


def divide(recorded: Recorded) -> dict[str, float]:
    """Mean time of each part of a step.

    Each moment counts for one part: exposed communication first, else the innermost range around it, else ``other``.

    Args:
        recorded: Intervals of one rank.

    Returns:
        Part -> mean time of a step, in the unit of the intervals.

    """
    steps = difference(union(recorded.steps), union(recorded.excluded))
    exposed = difference(union(recorded.communication), union(recorded.computation))
    painted: list[Interval] = []
    times = dict.fromkeys(PARTS, 0.0)

    def paint(part: str, intervals: Sequence[Interval]) -> None:
        nonlocal painted
        own = difference(intervals, painted)
        times[part] += length(own)
        painted = union([*painted, *own])

    paint("communication", [piece for step in steps for piece in clip(exposed, step)])
    nested = [(end - start, part, (start, end)) for part, found in recorded.ranges.items() for start, end in found]
    for _, part, one in sorted(nested):  # the inner range is the shorter one
        paint(part, [piece for step in steps for piece in clip([one], step)])
    times["other"] = length(steps) - length(painted)
    return {part: time / len(recorded.steps) for part, time in times.items()}


def load(folder: Path) -> tuple[Breakdown, ...]:
    """The breakdowns that the ranks of a run saved in a folder, in the order of the ranks; empty if no Trainer ran.

    Args:
        folder: Folder that was passed to :mod:`traced`.

    """
    found = [Breakdown(**json.loads(path.read_text())) for path in folder.glob(_FILE.format(rank="*"))]
    return tuple(sorted(found, key=lambda one: one.rank))


def mean(ranks: Sequence[Breakdown]) -> Breakdown:
    """The mean over the ranks, as rank -1.

    Args:
        ranks: Breakdowns of at least one rank.

    """
    number = len(ranks)
    seconds = {part: sum(one.seconds[part] for one in ranks) / number for part in PARTS}
    return replace(
        ranks[0],
        rank=-1,
        seconds=seconds,
        traced_seconds=sum(one.traced_seconds for one in ranks) / number,
        untraced_seconds=sum(one.untraced_seconds for one in ranks) / number,
    )
