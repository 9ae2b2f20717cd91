# SPDX-License-Identifier: Apache-2.0
"""Samplers of complete batches: the same global batches for any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch.utils.data import DistributedSampler

from lightning_sagemaker.data.order import Blocks, Order

Integers = npt.NDArray[np.int64]

_POOL = 100
"""Global batches per pool that is sorted by length. More gain little; fewer mix long samples with short ones."""

_MOST_IN_TABLE = 1 << 22
"""Maximum samples whose order is drawn as one table, of 32 MiB. For more, it is computed per position."""

_POSITIONS_AT_ONCE = 1 << 16
"""Number of batches whose samples are computed together."""

Ahead = Callable[[Iterator[Integers]], Iterator[Integers]]
"""Forwards batches, each an array of draws, and may prefetch."""


class _Batches(DistributedSampler[Any]):
    """A sampler whose items are complete batches; a :class:`DistributedSampler`, because Lightning keeps those unchanged.

    Used as ``DataLoader(dataset, sampler=batches, batch_size=None)``.
    """

    def __init__(self, size: int, num_replicas: int, rank: int, seed: int = 0) -> None:
        super().__init__(cast(Any, range(size)), num_replicas, rank, seed=seed)
        self._size = size


class TrainingBatches(_Batches):
    """Shuffled micro-batches of draws; step k of an epoch trains on the same samples for any number of processes.

    A *draw* is one visit to one sample: ``epoch * size + index``. Each epoch is a new permutation of all samples,
    without the incomplete last global batch: a function of seed and epoch only. The position in it is a number of
    samples, so that a resumed run trains on the rest, whatever its world size, batch size and accumulation.

    For very many samples, or with ``blocks``, the order is an :class:`~lightning_sagemaker.data.order.Order`, which is
    computed step by step, without a table.

    With ``lengths``, samples of similar length share a batch: the permutation is split into pools of 100 global
    batches, each pool is sorted by length and split into global batches, and these are shuffled. Of each global batch,
    sorted, micro-batch ``a`` is the a-th part and process r takes every ``num_replicas``-th sample from the r-th on, so
    all processes compute equally long batches at the same time.

    Args:
        size: Number of samples.
        global_batch_size: Samples per optimizer step over all processes and accumulated micro-batches.
        num_replicas: Processes that train on different data.
        rank: Rank of this process among them.
        accumulate: Micro-batches per optimizer step.
        seed: Seed of the order.
        lengths: Length of each sample, ``[size]``; ``None`` if all are equally long.
        blocks: How samples are grouped, if they are not to be read one by one; not with ``lengths``.

    Attributes:
        batches_done: Returns the number of completed batches of the epoch at the start of an iteration, if nothing else
            skips them.
        ahead: Forwards the batches, and may prefetch.

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
        blocks: Blocks | None = None,
    ) -> None:
        super().__init__(size, num_replicas, rank, seed)
        self._global = global_batch_size
        self._accumulate = accumulate
        self._lengths = lengths
        if blocks is None and lengths is None and size > _MOST_IN_TABLE:
            blocks = Blocks(1, size)
        self._blocks = blocks
        self._steps = size // global_batch_size
        self.batches_done: Callable[[], int] = lambda: 0
        self.ahead: Ahead = iter

    @property
    def samples_per_batch(self) -> int:
        """Samples of one process in a micro-batch."""
        return self._global // self._accumulate // self.num_replicas

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step over all processes."""
        return self._global

    @property
    def shuffled_by(self) -> str | None:
        """Identifies an order of blocks; None for an order by a table."""
        return None if self._blocks is None else f"blocks of {self._blocks.size}, {self._blocks.window} at once"

    def __len__(self) -> int:
        return self._steps * self._accumulate

    def __iter__(self) -> Iterator[list[int]]:
        return self.iterate_from(self.batches_done())

    def iterate_from(self, batch: int) -> Iterator[list[int]]:
        """This process's batches of the epoch without the first ``batch``."""
        yield from self._rest(0, self._global).iterate_from(batch)

    def remaining(self, done: int, global_batch_size: int) -> Rest:
        """This process's batches of the rest of the epoch.

        Args:
            done: Samples of the epoch, over all processes.
            global_batch_size: Global batch size by which they were ordered.

        """
        return self._rest(done, global_batch_size or self._global)

    def _rest(self, done: int, ordered_by: int) -> Rest:
        total = self._size // ordered_by * ordered_by - done
        steps = max(0, total // self._global)
        if self._blocks is None:
            order = self.global_batches(self.epoch, ordered_by).reshape(-1)[done:]
            return Rest(self, steps, (done, ordered_by), lambda begin, end: order[begin:end])
        following = Order(self._size, self.seed, self.epoch, self._blocks.size, self._blocks.window)
        return Rest(self, steps, (done, ordered_by), lambda begin, end: following(np.arange(done + begin, done + end)))

    def deal(self, steps: Integers, epoch: int) -> Integers:
        """This process's batches, ``[batches, samples]``, of an epoch's ``steps``, ``[steps, global_batch_size]``."""
        if self._blocks is not None and self._blocks.near:
            own = np.sort(steps, axis=1).reshape(len(steps), self.num_replicas, -1)[:, self.rank]
            parts = own.reshape(len(steps) * self._accumulate, -1)
        else:
            parts = steps.reshape(-1, self._global // self._accumulate)[:, self.rank :: self.num_replicas]
        return epoch * self._size + parts

    @property
    def batches_per_step(self) -> int:
        """Batches of one process in an optimizer step."""
        return self._accumulate

    def global_batches(self, epoch: int, global_batch_size: int | None = None) -> Integers:
        """The samples of each step of an epoch: ``[steps, global_batch_size]``."""
        size = self._global if global_batch_size is None else global_batch_size
        steps = self._size // size
        if self._blocks is not None:
            lazy = Order(self._size, self.seed, epoch, self._blocks.size, self._blocks.window)
            return lazy(np.arange(steps * size)).reshape(steps, size)
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        order = random.permutation(self._size)[: steps * size]
        if self._lengths is None:
            return order.reshape(steps, size)
        pools = np.arange(len(order)) // (_POOL * size)
        # Stable, so equally long samples stay in the permutation's order.
        order = order[np.lexsort((self._lengths[order], pools))]
        batches: Integers = order.reshape(steps, size)[random.permutation(steps)]
        return batches


class Rest(Sequence[list[int]]):
    """The batches of a process from a position in the current epoch on, created lazily.

    Args:
        batches: The sampler.
        steps: Number of remaining optimizer steps.
        place: Number of completed samples, over all processes, and the global batch size by which they were ordered.
        samples: Function from a range of positions, relative to ``place``, to sample indices.

    """

    def __init__(
        self,
        batches: TrainingBatches,
        steps: int,
        place: tuple[int, int],
        samples: Callable[[int, int], Integers],
    ) -> None:
        self.place = place
        self._batches, self._steps, self._samples = batches, steps, samples
        self._epoch = batches.epoch
        self._each = batches.batches_per_step
        self._at_once = max(1, _POSITIONS_AT_ONCE // batches.global_batch_size)

    def __len__(self) -> int:
        return self._steps * self._each

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        number = range(len(self))[place]
        return self._dealt(number // self._each, 1)[number % self._each].tolist()

    def __iter__(self) -> Iterator[list[int]]:
        return self.iterate_from(0)

    def iterate_from(self, batch: int) -> Iterator[list[int]]:
        """The batches without the first ``batch``."""
        return (draws.tolist() for draws in self._batches.ahead(self._from(batch)))

    def _from(self, batch: int) -> Iterator[Integers]:
        step, within = divmod(batch, self._each)
        while step < self._steps:
            yield from self._dealt(step, self._at_once)[within:]
            step, within = step + self._at_once, 0

    def _dealt(self, step: int, count: int) -> Integers:
        size = self._batches.global_batch_size
        end = min(step + count, self._steps)
        return self._batches.deal(self._samples(step * size, end * size).reshape(end - step, size), self._epoch)


class EvaluationBatches(_Batches):
    """Each sample once over all processes, in batches that do not depend on how many there are.

    Complete batches are assigned to the processes round-robin, so every value is computed from the same tensors on 1, 2
    or 4 of them. All processes get the same number of batches, all of the same size: the rest is padding, an index i
    encoded as -1 - i. Lightning's own sampler repeats samples instead, which changes the mean.

    Args:
        size: Number of samples.
        batch_size: Samples per process and forward pass.
        num_replicas: Processes that evaluate different data.
        rank: Rank of this process among them.
        lengths: Length of each sample, ``[size]``, to put samples of similar length into a batch.

    """

    def __init__(
        self, size: int, batch_size: int, num_replicas: int = 1, rank: int = 0, lengths: Integers | None = None
    ) -> None:
        super().__init__(size, num_replicas, rank)
        self.ahead: Ahead = iter
        self.samples_per_batch = batch_size
        order = np.arange(size) if lengths is None else np.argsort(lengths, kind="stable")
        per_round = batch_size * num_replicas
        # The shortest sample is the cheapest padding.
        padding = np.full(-size % per_round, -1 - order[0] if size else -1)
        self._all = np.concatenate([order, padding]).reshape(-1, batch_size)

    def __len__(self) -> int:
        return len(self._all) // self.num_replicas

    def __iter__(self) -> Iterator[list[int]]:
        return (indices.tolist() for indices in self.ahead(iter(self._all[self.rank :: self.num_replicas])))


def sample_indices(draws: list[int] | Integers, size: int) -> Integers:
    """The sample indices of draws or of padded indices."""
    numbers = np.asarray(draws, dtype=np.int64)
    return np.where(numbers < 0, -1 - numbers, numbers % size)
