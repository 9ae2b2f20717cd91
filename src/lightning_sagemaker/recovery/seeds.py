# SPDX-License-Identifier: Apache-2.0
"""Random states that depend on the training position, not on the rank."""

from __future__ import annotations

import random
from hashlib import blake2b

import numpy as np
import torch


def seed_batch(seed: int, batch: int, shard: int) -> None:
    """Seed a batch: a function of the job's seed, the batch index and its shard, whichever rank trains on it."""
    seed_all(seed, batch, shard)


def seed_all(*numbers: int) -> None:
    """Seed all generators of this process with a function of some numbers."""
    # At each batch: NumPy's SeedSequence would take several times as long.
    number = int.from_bytes(blake2b(repr([*map(int, numbers)]).encode(), digest_size=8).digest(), "little")
    # torch.manual_seed looks for every kind of device, which takes a millisecond.
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
