# SPDX-License-Identifier: Apache-2.0
"""A custom sampler that Lightning distributes to ranks: all of them must draw the same order and know each other's part.

With Lightning's wrapper each rank draws the sampler's order and takes every n-th sample of it. The orders agree because
the random states agree; here these differ, as each batch uses its shard's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DistributedSampler

from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state
from lightning_sagemaker.recovery.seeds import seed_all


class _Drawn:
    """An order that depends on a seed only, so that it has no state to save."""

    holds_no_order = True

    def __init__(self, samples: list[Any], epoch: int) -> None:
        self.samples, self.epoch = samples, epoch


class CommonOrder:
    """Replaces the dataset that Lightning's wrapper creates from a sampler: its samples, drawn once per epoch.

    Args:
        wrapper: Lightning's ``DistributedSamplerWrapper``.
        seed: The job's seed of random numbers.

    """

    def __init__(self, wrapper: DistributedSampler[Any], seed: int) -> None:
        self._sampler = wrapper.dataset._sampler  # type: ignore[attr-defined]  # through which the wrapper sets its epoch
        self._wrapper, self._seed = wrapper, seed
        self._drawn: _Drawn | None = None

    def __len__(self) -> int:
        return len(self._sampler)

    def reset(self) -> None:
        """Draw the order of the wrapper's epoch, a function of that and the seed; the generators are unchanged."""
        before = random_state()
        seed_all(self._seed, self._wrapper.epoch)
        self._drawn = _Drawn(list(self._sampler), self._wrapper.epoch)
        restore_random_state(before)

    def __getitem__(self, index: int) -> Any:
        if self._drawn is None or self._drawn.epoch != self._wrapper.epoch:
            self.reset()
        assert self._drawn is not None
        return self._drawn.samples[index]


def is_wrapped(sampler: Any) -> bool:
    """Whether Lightning distributes the order of a custom sampler."""
    return type(sampler).__name__ == "DistributedSamplerWrapper"


def draw_together(sampler: Any, seed: int) -> None:
    """Make all ranks draw the same order of a wrapped sampler; other samplers are not changed."""
    if is_wrapped(sampler) and not isinstance(sampler.dataset, CommonOrder):
        sampler.dataset = CommonOrder(sampler, seed)


def samples_of(sampler: Any, shard: int) -> Iterator[Any]:
    """A shard's part of the order that a wrapped sampler has drawn for this epoch."""
    other = copy.copy(sampler)
    other.rank = shard
    return (other.dataset[index] for index in DistributedSampler.__iter__(other))
