# SPDX-License-Identifier: Apache-2.0
"""Random states that depend on the training position, not on the rank."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import numpy as np
import torch


def seed_batch(seed: int, epoch: int, number: int, shard: int) -> None:
    """Seed all generators for a batch, whichever rank trains on it.

    Args:
        seed: The job's seed.
        epoch: Number of the epoch.
        number: Index of the batch in it.
        shard: Shard of the batch.

    """
    seed_all(*_place(seed, epoch, number, shard))


def seeded_batch(batch: object, seed: int, epoch: int, number: int, shard: int) -> object:
    """Batch indices that seed the generators when the batch is loaded, so that random data is the same on any rank.

    Args:
        batch: Indices as the sampler yields them; only lists are supported, others are returned unchanged.
        seed: The job's seed.
        epoch: Number of the epoch.
        number: Index of the batch in it.
        shard: Shard of the batch.

    """
    return _SeededBatch(batch, _place(seed, epoch, number, shard)) if type(batch) is list else batch


def _place(seed: int, epoch: int, number: int, shard: int) -> tuple[int, int, int]:
    return seed, (epoch << 32) + number, shard


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
