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
    """Shuffled micro-batches of draws; step k of an epoch trains on the same samples for any number of processes.

    A *draw* is one visit to one sample: ``epoch * size + index``. Each epoch is a new permutation of all samples, of which
    the end that does not fill a global batch is left out: a function of seed and epoch alone. The place in it is a number of
    samples, so that a resumed run trains on the rest, whatever its processes, batches and accumulation.

    With ``lengths``, samples of similar length share a batch: the permutation is cut into pools of 100 global batches,
    each pool is sorted by length and cut into global batches, and these are shuffled. Of each global batch, sorted,
    micro-batch ``a`` is the a-th part and process r takes every ``num_replicas``-th sample from the r-th on, so all
    processes compute equally long batches at the same time.

    Args:
        size: Number of samples.
        global_batch_size: Samples per optimizer step over all processes and accumulated micro-batches.
        num_replicas: Processes that train on different data.
        rank: Rank of this process among them.
        accumulate: Micro-batches per optimizer step.
        seed: Seed of the order.
        lengths: ``[size]``, of each sample; ``None`` if all are equally long.

    Attributes:
        batches_done: Says how many batches of the epoch are done when an iteration begins, where nothing else passes over
            them.

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
    ) -> None:
        super().__init__(size, num_replicas, rank, seed)
        self._global = global_batch_size
        self._accumulate = accumulate
        self._lengths = lengths
        self._steps = size // global_batch_size
        self.batches_done: Callable[[], int] = lambda: 0

    @property
    def samples_per_batch(self) -> int:
        """Of one process in a micro-batch."""
        return self._global // self._accumulate // self.num_replicas

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step over all processes."""
        return self._global

    def __len__(self) -> int:
        return self._steps * self._accumulate

    def __iter__(self) -> Iterator[list[int]]:
        yield from self._deal(self.global_batches(self.epoch))[self.batches_done() :]

    def remaining(self, done: int, global_batch_size: int) -> list[list[int]]:
        """This process's batches of the rest of the epoch.

        Args:
            done: Samples of the epoch, over all processes.
            global_batch_size: By which they were ordered and cut.

        """
        rest = self.global_batches(self.epoch, global_batch_size).reshape(-1)[done:]
        steps = len(rest) // self._global
        return self._deal(rest[: steps * self._global].reshape(steps, self._global))

    def _deal(self, steps: Integers) -> list[list[int]]:
        parts = steps.reshape(-1, self._global // self._accumulate)[:, self.rank :: self.num_replicas]
        return (self.epoch * self._size + parts).tolist()  # type: ignore[no-any-return]

    def global_batches(self, epoch: int, global_batch_size: int | None = None) -> Integers:
        """The samples of each step of an epoch: ``[steps, global_batch_size]``."""
        size = self._global if global_batch_size is None else global_batch_size
        steps = self._size // size
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        order = random.permutation(self._size)[: steps * size]
        if self._lengths is None:
            return order.reshape(steps, size)
        pools = np.arange(len(order)) // (_POOL * size)
        # Stable, so equally long samples stay in the permutation's order.
        order = order[np.lexsort((self._lengths[order], pools))]
        batches: Integers = order.reshape(steps, size)[random.permutation(steps)]
        return batches


class EvaluationBatches(_Batches):
    """Each sample once over all processes, in batches that do not depend on how many there are.

    Whole batches go to the processes in turn, so every number is computed from the same tensors on 1, 2 or 4 of them.
    All processes get as many batches, all batches are equally large: what is missing is padding, an index i as -1 - i.
    Lightning's own sampler repeats samples instead, which changes the mean.

    Args:
        size: Number of samples.
        batch_size: Samples per process and forward pass.
        num_replicas: Processes that evaluate different data.
        rank: Rank of this process among them.
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
