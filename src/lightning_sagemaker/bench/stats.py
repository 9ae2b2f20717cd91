# SPDX-License-Identifier: Apache-2.0
"""Detects a run's steady state, and computes intervals of a median or a ratio of medians."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_REPEATS = 1000
_BLOCK = 5
"""Number of neighboring windows that are resampled together, as they are correlated."""
_LEAST = 4
"""Minimum number of windows of a steady state."""


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval, as estimated from the measurement itself.

    Attributes:
        value: The median, or a ratio of medians.
        low: Lower end.
        high: Upper end.

    """

    value: float
    low: float
    high: float

    def __contains__(self, other: float) -> bool:
        return self.low <= other <= self.high


def warm_up(rates: Sequence[float]) -> int:
    """Number of windows to discard at the beginning, so that the mean of the rest has the smallest standard error.

    The rule is MSER (White 1997): the truncation with the least squared standard error. At most half is discarded.

    Args:
        rates: Samples per second of each window, in order.

    """
    times = [1 / rate for rate in rates]

    def error(start: int) -> float:
        rest = times[start:]
        return statistics.pvariance(rest) / len(rest)

    most = min(len(times) // 2, max(0, len(times) - _LEAST))
    return min(range(most + 1), key=error) if times else 0


def is_steady(rates: Sequence[float]) -> bool:
    """Whether the medians of both halves differ by at most twice the spread within a half."""
    half = len(rates) // 2
    if half < 2:
        return False
    first, second = statistics.median(rates[:half]), statistics.median(rates[half:])
    spread = max(_spread(rates[:half]), _spread(rates[half:]), 0.01 * first)
    return abs(first - second) <= 2 * spread


def rate(rounds: Sequence[Sequence[float]]) -> Interval:
    """Median over the rounds of the median window, and its uncertainty.

    Args:
        rounds: For each round, samples per second of its steady windows.

    """
    return _interval(_central(rounds), lambda seed: _central(_resampled(rounds, seed)))


def ratio(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> Interval:
    """The ratio of two rates as of :func:`rate`, and its uncertainty."""
    return _interval(
        _central(above) / _central(below),
        lambda seed: _central(_resampled(above, seed)) / _central(_resampled(below, seed)),
    )


def _central(rounds: Sequence[Sequence[float]]) -> float:
    return statistics.median(statistics.median(windows) for windows in rounds)


def _spread(values: Sequence[float]) -> float:
    """Median absolute deviation, scaled to a normal distribution's standard deviation."""
    center = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - center) for value in values)


def _interval(value: float, draw: Callable[[random.Random], float]) -> Interval:
    seed = random.Random(0)
    drawn = sorted(draw(seed) for _ in range(_REPEATS))
    return Interval(value, min(value, drawn[int(0.025 * _REPEATS)]), max(value, drawn[int(0.975 * _REPEATS)]))


def _resampled(rounds: Sequence[Sequence[float]], seed: random.Random) -> list[list[float]]:
    """Rounds drawn with replacement, and in each of them blocks of windows (a two-level bootstrap)."""
    found = []
    for _ in rounds:
        windows = seed.choice(rounds)
        block = min(_BLOCK, max(1, len(windows) // 4))
        drawn: list[float] = []
        while len(drawn) < len(windows):
            start = seed.randrange(len(windows) - block + 1)
            drawn += windows[start : start + block]
        found.append(drawn[: len(windows)])
    return found
