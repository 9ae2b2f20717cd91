# SPDX-License-Identifier: Apache-2.0
"""Redraws an order of batches, up to the position of an earlier run.

This is after the last batch that was trained on: workers prefetch batches, and at its end an order may draw once more (a
``RandomSampler`` does). The generator is then at the same position as before, and nothing is drawn twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def redrawn(source: object, order: Iterator[T], done: int, drawn: int, issue: Callable[[T], None]) -> Iterator[T]:
    """The rest of an order.

    Args:
        source: The sampler. With ``iterate_from`` its order is not drawn at random, so nothing needs to be redrawn.
        order: Iterator from the beginning of the order.
        done: Batches that were trained on.
        drawn: Number of draws, including the one that found the end.
        issue: Called with each drawn batch.

    """
    if hasattr(source, "iterate_from"):
        rest: Iterator[T] = source.iterate_from(done)
        return rest
    for batch in itertools.islice(order, done):
        issue(batch)
    ahead = [*itertools.islice(order, max(drawn - done, 0 if done else 1))]  # the order is drawn with the first batch
    return itertools.chain(ahead, order)
