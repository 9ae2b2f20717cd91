# SPDX-License-Identifier: Apache-2.0
"""The results in docs/machines.md: ``python -m tests.machines.page`` prints them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from tests.machines.conditions import CONDITIONS, SYSTEMS
from tests.machines.runs import STARTS, Condition


def paragraphs(conditions: Iterable[Condition]) -> Iterator[str]:
    """What comes of all starts, as test_conditions.py holds it: a paragraph for each outcome."""
    names: dict[str, list[str]] = {}
    for condition in conditions:
        (outcome,) = {condition.outcome(start) for start in STARTS}
        names.setdefault(outcome, []).append(
            condition.name + (f" (simulated: {condition.simulated})" if condition.simulated else "")
        )
    for outcome, found in names.items():
        yield textwrap.fill(f"**{outcome.capitalize()}:** {'; '.join(found)}.", 125, break_on_hyphens=False)


def table(conditions: Iterable[Condition]) -> Iterator[str]:
    """What comes of each start, as test_conditions.py holds it."""
    yield f"| | {' | '.join(STARTS)} |"
    yield "|---|" + "---|" * len(STARTS)
    for condition in conditions:
        yield f"| {condition.name} | {' | '.join(condition.outcome(start) for start in STARTS)} |"


MACHINES = "\n\n".join(paragraphs(CONDITIONS[1:]))
OTHER_SYSTEMS = "\n".join(table(SYSTEMS))


if __name__ == "__main__":
    print(MACHINES, OTHER_SYSTEMS, sep="\n\n")
