# SPDX-License-Identifier: Apache-2.0
"""An order of batches that is drawn again, up to where an earlier run was.

Not up to the last batch that was trained on: workers ask for batches ahead, and at its end an order may draw once more (a
``RandomSampler`` does). What the order draws from is then as far as it was, and nothing is drawn twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def redrawn(source: object, order: Iterator[T], done: int, drawn: int, issue: Callable[[T], None]) -> Iterator[T]:
    """What remains of an order.

    Args:
        source: What the order is one of; with ``iterate_from`` nothing is drawn, so nothing needs to be drawn again.
        order: From its beginning.
        done: Batches that were trained on.
        drawn: Batches that were asked for, including the one that was not there.
        issue: Called with each of the former.

    """
    if hasattr(source, "iterate_from"):
        rest: Iterator[T] = source.iterate_from(done)
        return rest
    for batch in itertools.islice(order, done):
        issue(batch)
    ahead = [*itertools.islice(order, max(drawn - done, 0 if done else 1))]  # it draws with the first
    return itertools.chain(ahead, order)
