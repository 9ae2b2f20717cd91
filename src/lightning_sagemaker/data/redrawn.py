# SPDX-License-Identifier: Apache-2.0
"""Redraws an order of batches, up to the position of an earlier run.

This is after the last batch that was trained on: workers prefetch batches, and at its end an order may draw once more (a
``RandomSampler`` does). The generator is then at the same position as before, and nothing is drawn twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from lightning_sagemaker.checkpoint.random_state import equal_states
from lightning_sagemaker.data.captured import Capture, Captured

T = TypeVar("T")


class Begun:
    """An order that is begun as torch begins it: some samplers draw then, others with the first batch.

    Args:
        capture: Captures the state that the order is drawn from.
        sampler: The sampler.

    """

    def __init__(self, capture: Capture, sampler: Iterable[object]) -> None:
        self._capture, before = capture, capture.take()
        self.order = iter(sampler)
        self._before = None if equal_states(before, capture.take()) else before

    def before(self) -> Captured:
        """The state before it was drawn; called before the first batch."""
        return self._capture.take() if self._before is None else self._before


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
