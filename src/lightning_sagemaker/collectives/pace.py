# SPDX-License-Identifier: Apache-2.0
"""When processes ask each other: rarely enough to cost nothing, often enough that all answer a signal in time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from lightning_sagemaker.collectives.votes import Votes

_LATENCY = 0.5
"""Seconds between two questions at most; what is asked at one is known at the next, so an answer takes twice as long."""
_MOST = 64
"""Batches between two questions at most: batches may become much slower at once."""


class Pace:
    """Batches between two questions, for one kind of batches: those of a validation say nothing about those of training.

    Where a batch takes longer than half a second, each question is answered before the next batch, which costs little there.

    Args:
        overhead: Share of the time that asking may cost.

    Attributes:
        waits: Whether the answer to a question is waited for.

    """

    def __init__(self, overhead: float) -> None:
        self._overhead = overhead
        self.begin(0)

    def begin(self, count: int) -> None:
        """Count from here; nothing is known of what a batch takes."""
        self.waits = True
        self._asked = count
        self._next = count + 1
        self._begin = time.monotonic()
        self._paused: float | None = None

    def pause(self) -> None:
        """Other batches come between."""
        self._paused = time.monotonic()

    def go_on(self) -> None:
        """Count these again."""
        if self._paused is not None:
            self._begin += time.monotonic() - self._paused
            self._paused = None

    def is_due(self, count: int) -> bool:
        """Whether to ask after ``count`` batches."""
        return count >= self._next

    def batch_seconds(self, count: int) -> float:
        """What a batch has taken since the last question."""
        return max(time.monotonic() - self._begin, 1e-6) / max(1, count - self._asked)

    def wish(self, count: int, cost: float) -> tuple[int, bool]:
        """Batches to the next question and whether to wait for the answer, as this process would have it.

        Args:
            count: Batches by now.
            cost: Cost of a question, in seconds.

        """
        seconds = self.batch_seconds(count)
        cheap = math.ceil(cost / (self._overhead * seconds))
        return max(1, min(cheap, int(_LATENCY / seconds), _MOST)), seconds > _LATENCY

    def asked(self, count: int, interval: int, waits: bool) -> None:
        """A question was asked; the next is due after ``interval`` batches, as all have agreed."""
        self._asked, self._next, self._begin = count, count + interval, time.monotonic()
        self.waits = waits


def ask(votes: Votes, pace: Pace, count: int, own: Sequence[float]) -> list[float]:
    """Tell the others something where a question is due, and hear what is known. Collective.

    Args:
        votes: Among whom.
        pace: By which the question is due.
        count: Batches by now.
        own: What this process has to say.

    Returns:
        The largest of each, of this question or, where nobody waits, of the one before.

    """
    known = None if pace.waits else votes.read()
    interval, waits = (1, True) if votes.is_alone else pace.wish(count, votes.seconds)
    votes.ask([*own, interval, waits])
    if known is None:
        known = votes.read()
    assert known is not None
    pace.asked(count, int(known[-2]), bool(known[-1]))
    return known[:-2]
