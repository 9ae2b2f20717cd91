# SPDX-License-Identifier: Apache-2.0
"""How often processes synchronize: rarely enough to cost almost nothing, often enough to react to a signal in time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from lightning_sagemaker.collectives.async_max import AsyncMaxReduce

_LATENCY = 0.5
"""Maximum seconds between two exchanges; the result of one is known at the next, so a reaction takes twice as long."""
_MOST = 64
"""Maximum batches between two exchanges: batches may suddenly become much slower."""


class Pace:
    """Batches between two exchanges, for one kind of batches, as training and validation differ.

    If a batch takes longer than half a second, each exchange completes before the next batch, which then costs little.

    Args:
        overhead: Share of the time that exchanges may take.

    Attributes:
        waits: Whether to wait for the result of an exchange.

    """

    def __init__(self, overhead: float) -> None:
        self._overhead = overhead
        self.begin(0)

    def begin(self, count: int) -> None:
        """Start counting; the duration of a batch is unknown."""
        self.waits = True
        self._asked = count
        self._next = count + 1
        self._begin = time.monotonic()
        self._paused: float | None = None

    def pause(self) -> None:
        """Pause for other batches."""
        self._paused = time.monotonic()

    def go_on(self) -> None:
        """Resume counting."""
        if self._paused is not None:
            self._begin += time.monotonic() - self._paused
            self._paused = None

    def is_due(self, count: int) -> bool:
        """Whether an exchange is due after ``count`` batches."""
        return count >= self._next

    def batch_seconds(self, count: int) -> float:
        """Seconds per batch since the last exchange."""
        return max(time.monotonic() - self._begin, 1e-6) / max(1, count - self._asked)

    def wish(self, count: int, cost: float) -> tuple[int, bool]:
        """Batches to the next exchange and whether to wait for its result, as this process prefers.

        Args:
            count: Batches so far.
            cost: Cost of an exchange, in seconds.

        """
        seconds = self.batch_seconds(count)
        cheap = math.ceil(cost / (self._overhead * seconds))
        return max(1, min(cheap, int(_LATENCY / seconds), _MOST)), seconds > _LATENCY

    def asked(self, count: int, interval: int, waits: bool) -> None:
        """An exchange was started; the next is due after ``interval`` batches, as all agreed."""
        self._asked, self._next, self._begin = count, count + interval, time.monotonic()
        self.waits = waits


def ask(votes: AsyncMaxReduce, pace: Pace, count: int, own: Sequence[float]) -> list[float]:
    """Exchange values if due, and return the known result. Collective.

    Args:
        votes: Among whom.
        pace: By which the question is due.
        count: Batches so far.
        own: Values of this process.

    Returns:
        The maximum of each value, of this exchange or, without waiting, of the previous one.

    """
    known = None if pace.waits else votes.read()
    interval, waits = (1, True) if votes.is_alone else pace.wish(count, votes.seconds)
    votes.ask([*own, interval, waits])
    if known is None:
        known = votes.read()
    assert known is not None
    pace.asked(count, int(known[-2]), bool(known[-1]))
    return known[:-2]
