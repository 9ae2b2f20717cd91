# SPDX-License-Identifier: Apache-2.0
"""Random states that depend on the training position, not on the rank."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import numpy as np
import torch


def seed_batch(seed: int, batch: int, shard: int) -> None:
    """Seed all generators for a batch, by the job's seed, the batch index and its shard, whichever rank trains on it."""
    seed_all(seed, batch, shard)


def with_seed(batch: object, *numbers: int) -> object:
    """Batch indices that seed the generators when the batch is loaded, so that random data is the same on any rank.

    Args:
        batch: Indices as the sampler yields them; only lists are supported, others are returned unchanged.
        numbers: The job's seed and the batch's position.

    """
    return _SeededBatch(batch, numbers) if type(batch) is list else batch


class _SeededBatch(list[object]):
    """Seeds when iterated, which is when its samples are read, in a worker or not."""

    def __init__(self, indices: Iterable[object], numbers: tuple[int, ...]) -> None:
        super().__init__(indices)
        self._numbers = numbers

    def __iter__(self) -> Iterator[object]:
        seed_all(*self._numbers, _DATA)
        return super().__iter__()

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return _SeededBatch, (tuple(super().__iter__()), self._numbers)


_DATA = 1
"""Makes random numbers of data loading differ from those of training on the same batch."""


def seed_all(*numbers: int) -> None:
    """Seed all generators of this process with a hash of ``numbers``."""
    # Called for each batch: NumPy's SeedSequence would take several times as long.
    number = int.from_bytes(blake2b(repr([*map(int, numbers)]).encode(), digest_size=8).digest(), "little")
    # torch.manual_seed seeds every kind of device, which takes a millisecond.
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
