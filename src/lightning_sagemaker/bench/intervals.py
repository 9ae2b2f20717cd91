# SPDX-License-Identifier: Apache-2.0
"""Sets of time intervals: union, difference and length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
"""Start and end, in any unit of time."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as disjoint intervals in order.

    Args:
        intervals: Intervals in any order; they may overlap.

    """
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def difference(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The times of ``first`` that are not in ``second``.

    Args:
        first: Disjoint intervals in order, as :func:`union` returns them.
        second: Disjoint intervals in order.

    """
    found, place = [], 0
    for start, end in first:
        while place < len(second) and second[place][1] <= start:
            place += 1
        after = place
        while after < len(second) and second[after][0] < end:
            if second[after][0] > start:
                found.append((start, second[after][0]))
            start = max(start, second[after][1])
            after += 1
        if start < end:
            found.append((start, end))
    return found


def clip(intervals: Sequence[Interval], within: Interval) -> list[Interval]:
    """The times of ``intervals`` that are in one other interval."""
    low, high = within
    return [(max(start, low), min(end, high)) for start, end in intervals if end > low and start < high]


def length(intervals: Iterable[Interval]) -> float:
    """Total time of disjoint intervals."""
    return sum(end - start for start, end in intervals)
