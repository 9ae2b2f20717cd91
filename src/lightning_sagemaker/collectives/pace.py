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
_LONGEST = 30.0
"""Maximum seconds between two exchanges if all batches take as long as the longest one of late."""
_KEPT = 0.9
"""Part of the longest batch's time that counts after another exchange: it may have been an epoch's first batch."""


class Pace:
    """The interval between two exchanges, in batches of one kind: training's and validation's differ in duration.

    If a batch takes longer than half a second, each exchange is awaited before the next batch, which then costs little.

    Args:
        overhead: Fraction of the time that exchanges may take.

    Attributes:
        waits: Whether to wait for the result of an exchange.

    """

    def __init__(self, overhead: float) -> None:
        self._overhead = overhead
        self._longest = 0.0
        self.start(0)

    def start(self, count: int) -> None:
        """Start after ``count`` batches, with the duration of a batch unknown: the next exchange is due after one."""
        self.waits = True
        self._last = count
        self._next = count + 1
        self._begin = self._ended = time.monotonic()
        self._paused: float | None = None

    def pause(self) -> None:
        """Stop the clock while batches of another kind run."""
        self._paused = time.monotonic()

    def resume(self) -> None:
        """Restart the clock."""
        if self._paused is not None:
            paused, self._paused = time.monotonic() - self._paused, None
            self._begin, self._ended = self._begin + paused, self._ended + paused

    def is_due(self, count: int) -> bool:
        """Whether an exchange is due after ``count`` batches; to be called after each."""
        now = time.monotonic()
        self._longest, self._ended = max(self._longest, now - self._ended), now
        return count >= self._next

    def batch_seconds(self, count: int) -> float:
        """Seconds per batch since the last exchange."""
        return max(time.monotonic() - self._begin, 1e-6) / max(1, count - self._last)

    def preferred(self, count: int, cost: float) -> tuple[int, bool]:
        """This process's preference: batches to the next exchange, and whether to wait for its result.

        Args:
            count: Batches so far.
            cost: Cost of an exchange, in seconds.

        """
        seconds = self.batch_seconds(count)
        cheap = math.ceil(cost / (self._overhead * seconds))
        safe = int(_LONGEST / self._longest) if self._longest else _MOST
        return max(1, min(cheap, int(_LATENCY / seconds), safe, _MOST)), seconds > _LATENCY

    def schedule(self, count: int, interval: int, waits: bool) -> None:
        """Make the next exchange due ``interval`` batches after ``count``, the same on all processes."""
        self._last, self._next, self._begin = count, count + interval, time.monotonic()
        self.waits = waits
        self._longest *= _KEPT


def exchange(votes: AsyncMaxReduce, pace: Pace, count: int, own: Sequence[float]) -> list[float]:
    """Start an exchange of values and schedule the next. Collective.

    Args:
        votes: The reduction over all processes.
        pace: The interval, whose exchange is due.
        count: Batches so far.
        own: Values of this process.

    Returns:
        The maximum of each value, of this exchange or, without waiting, of the previous one.

    """
    known = None if pace.waits else votes.wait()
    interval, waits = (1, True) if votes.is_alone else pace.preferred(count, votes.seconds)
    votes.start([*own, interval, waits])
    if known is None:
        known = votes.wait()
    assert known is not None
    pace.schedule(count, int(known[-2]), bool(known[-1]))
    return known[:-2]
