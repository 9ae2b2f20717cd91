# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/machines.md: ``python -m tests.machines.page`` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.machines.conditions import CONDITIONS, SYSTEMS
from tests.machines.runs import STARTS, Condition


def table(conditions: Iterable[Condition]) -> Iterator[str]:
    """What comes of each start, as test_conditions.py holds it."""
    yield f"| | {' | '.join(STARTS)} |"
    yield "|---|" + "---|" * len(STARTS)
    for condition in conditions:
        name = condition.name + (f" (simulated: {condition.simulated})" if condition.simulated else "")
        yield f"| {name} | {' | '.join(condition.outcome(start) for start in STARTS)} |"


def tables() -> str:
    """Both."""
    return "\n".join([*table(CONDITIONS[1:]), "", *table(SYSTEMS)])


if __name__ == "__main__":
    print(tables())
