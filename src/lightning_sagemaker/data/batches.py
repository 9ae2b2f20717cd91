# SPDX-License-Identifier: Apache-2.0
"""Which samples a process sees, and in which batches: the same global batches for any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch.utils.data import DistributedSampler

Integers = npt.NDArray[np.int64]

_POOL = 100
"""Global batches sorted by length together. More gain little; fewer mix long samples with short ones."""


class _Batches(DistributedSampler[Any]):
    """A sampler whose items are whole batches; a :class:`DistributedSampler`, because Lightning leaves those alone.

    Used as ``DataLoader(dataset, sampler=batches, batch_size=None)``.
    """

    def __init__(self, size: int, num_replicas: int, rank: int, seed: int = 0) -> None:
        super().__init__(cast(Any, range(size)), num_replicas, rank, seed=seed)
        self._size = size


class TrainingBatches(_Batches):
    """Shuffled micro-batches of draws; step k trains on the same samples for any number of processes.

    A *draw* is one visit to one sample: ``pass * size + index``. Each pass over the data is a new permutation of all
    samples, of which the end that does not fill a global batch is left out. What step k of a run trains on is a function of
    seed and k alone: a run that is continued goes on with the next batch, wherever it stopped.

    With ``lengths``, samples of similar length share a batch: the permutation is cut into pools of 100 global batches,
    each pool is sorted by length and cut into global batches, and these are shuffled. Of each global batch, sorted,
    micro-batch ``a`` is the a-th part and process r takes every ``num_replicas``-th sample from the r-th on, so all
    processes compute equally long batches at the same time.

    Args:
        size: Number of samples.
        global_batch_size: Samples per optimizer step over all processes and accumulated micro-batches.
        num_replicas: Processes that train on different data.
        rank: Of this process among them.
        accumulate: Micro-batches per optimizer step.
        seed: Of the order.
        lengths: ``[size]``, of each sample; ``None`` if all are equally long.
        steps_done: Says how many optimizer steps the run has done when an epoch begins. Default: those of whole epochs.

    """

    def __init__(
        self,
        size: int,
        global_batch_size: int,
        num_replicas: int = 1,
        rank: int = 0,
        accumulate: int = 1,
        seed: int = 0,
        lengths: Integers | None = None,
        steps_done: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(size, num_replicas, rank, seed)
        self._global = global_batch_size
        self._accumulate = accumulate
        self._lengths = lengths
        self._steps = size // global_batch_size
        self._steps_done = steps_done

    def __len__(self) -> int:
        return self._steps * self._accumulate

    def __iter__(self) -> Iterator[list[int]]:
        done = self.epoch * self._steps if self._steps_done is None else self._steps_done()
        batches = np.zeros((0, self._global), dtype=np.int64)
        for step in range(done, done + self._steps):
            number, place = divmod(step, self._steps)
            if step == done or place == 0:
                batches = self.global_batches(number)
            for part in batches[place].reshape(self._accumulate, -1):
                yield (number * self._size + part[self.rank :: self.num_replicas]).tolist()

    def global_batches(self, number: int) -> Integers:
        """The samples of each step of a pass: ``[steps, global_batch_size]``."""
        random = np.random.Generator(np.random.PCG64([self.seed, number]))
        order = random.permutation(self._size)[: self._steps * self._global]
        if self._lengths is None:
            return order.reshape(self._steps, self._global)
        pools = np.arange(len(order)) // (_POOL * self._global)
        # Stable, so equally long samples stay in the permutation's order.
        order = order[np.lexsort((self._lengths[order], pools))]
        return order.reshape(self._steps, self._global)[random.permutation(self._steps)]


class EvaluationBatches(_Batches):
    """Each sample once over all processes, in batches that do not depend on how many there are.

    Whole batches go to the processes in turn, so every number is computed from the same tensors on 1, 2 or 4 of them.
    All processes get as many batches, all batches are equally large: what is missing is padding, an index i as -1 - i.
    Lightning's own sampler repeats samples instead, which changes the mean.

    Args:
        size: Number of samples.
        batch_size: Samples per process and forward pass.
        num_replicas: Processes that evaluate different data.
        rank: Of this process among them.
        lengths: ``[size]``, of each sample, to put samples of similar length into a batch.

    """

    def __init__(
        self, size: int, batch_size: int, num_replicas: int = 1, rank: int = 0, lengths: Integers | None = None
    ) -> None:
        super().__init__(size, num_replicas, rank)
        order = np.arange(size) if lengths is None else np.argsort(lengths, kind="stable")
        per_round = batch_size * num_replicas
        # The shortest sample is the cheapest padding.
        padding = np.full(-size % per_round, -1 - order[0] if size else -1)
        self._batches = np.concatenate([order, padding]).reshape(-1, batch_size)[rank::num_replicas]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches.tolist())


def sample_indices(draws: list[int], size: int) -> Integers:
    """The samples that draws or padded indices stand for."""
    numbers = np.asarray(draws, dtype=np.int64)
    return np.where(numbers < 0, -1 - numbers, numbers % size)
