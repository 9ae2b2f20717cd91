# SPDX-License-Identifier: Apache-2.0
"""Which sequences a process sees, and in which order: the same global batches for any number of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, cast

import numpy as np
from torch.utils.data import DistributedSampler

PADDING = -1
"""A draw that stands for no sequence."""


class TrainingDraws(DistributedSampler[Any]):
    """Shuffled draws (see :mod:`masking`); the k-th global batch holds the same sequences for any number of processes.

    With ``accumulate`` micro-batches of ``global_batch_size / num_replicas / accumulate`` sequences, step k of all
    processes together takes entries ``k * global_batch_size`` and following of the epoch's permutation. The end of the
    permutation that does not fill a global batch is left out (other sequences in each epoch).

    A :class:`DistributedSampler`, because Lightning leaves those as they are.

    Args:
        dataset: Whose length counts.
        global_batch_size: Sequences per optimizer step over all processes.
        num_replicas: Processes that train on different data.
        rank: Of this process among them.
        seed: Of the permutation.

    """

    def __init__(self, dataset: Sized, global_batch_size: int, num_replicas: int, rank: int, seed: int) -> None:
        super().__init__(cast(Any, dataset), num_replicas, rank, shuffle=True, seed=seed, drop_last=True)
        self._size = len(dataset)
        self._used = self._size - self._size % global_batch_size
        self.num_samples = self._used // num_replicas
        self.total_size = self._used

    def __iter__(self) -> Iterator[int]:
        order = np.random.Generator(np.random.PCG64([self.seed, self.epoch])).permutation(self._size)
        mine = order[: self._used][self.rank :: self.num_replicas]
        return iter((self.epoch * self._size + mine).tolist())


class EvaluationDraws(DistributedSampler[Any]):
    """Each sequence once over all processes, in order, with :data:`PADDING` to give all as many.

    Lightning's own sampler repeats sequences instead, which changes the mean.

    Args:
        dataset: Whose length counts.
        num_replicas: Processes that evaluate different data.
        rank: Of this process among them.

    """

    def __init__(self, dataset: Sized, num_replicas: int, rank: int) -> None:
        super().__init__(cast(Any, dataset), num_replicas, rank, shuffle=False)
        self._size = len(dataset)

    def __iter__(self) -> Iterator[int]:
        mine = np.arange(self.rank, self.total_size, self.num_replicas)
        return iter(np.where(mine < self._size, mine, PADDING).tolist())
