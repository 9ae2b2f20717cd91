# SPDX-License-Identifier: Apache-2.0
"""A job's data is split into as many *shards* as it has ranks; another rank adopts the shard of a lost rank.

So a step trains on the same samples in the same batches, whichever ranks are left, and the mean over the shards is the
same gradient.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, cast

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from lightning_sagemaker.callbacks.fit_entries import Positions
from lightning_sagemaker.recovery.common_order import draw_together, is_wrapped, samples_of
from lightning_sagemaker.recovery.refused import CannotRecover
from lightning_sagemaker.recovery.seeds import seeded_batch

_SAMPLERS_RANK = re.compile(r"(batch_)?sampler\..*\brank$")
EVALUATION = -1
"""Replaces the epoch's number: each evaluation draws the same random numbers."""


def adopted(order: Sequence[int], world_size: int) -> dict[int, list[int]]:
    """Rank -> the shards that it adopts, of ranks that are not in ``order``; assigned round-robin."""
    found: dict[int, list[int]] = {rank: [] for rank in order}
    missing = [rank for rank in range(world_size) if rank not in found]
    for number, shard in enumerate(missing):
        found[order[number % len(order)]].append(shard)
    return found


def rank_of(shard: int, order: Sequence[int], world_size: int) -> int:
    """Index in ``order`` of the rank that trains on a shard."""
    return next(index for index, rank in enumerate(order) if rank == shard or shard in adopted(order, world_size)[rank])


def deal(loader: Any, seed: int) -> None:
    """Prepare a loader so that each rank can load the batches of the others.

    Args:
        loader: The training loader.
        seed: The job's seed of random numbers.

    Raises:
        CannotRecover: If its order is not that of a ``DistributedSampler``.

    """
    sampler = getattr(loader, "sampler", None)
    dealt = type(sampler) is DistributedSampler or is_wrapped(sampler)
    if isinstance(loader, DataLoader) and (
        hasattr(sampler, "iterate_from") or (dealt and type(loader.batch_sampler) is BatchSampler)
    ):
        draw_together(sampler, seed)
        return
    raise CannotRecover(
        f"the training data comes from a {type(loader).__name__} with the sampler {type(sampler).__name__}, so the samples"
        " of a lost rank are unknown, unlike those of a DataLoader over a map-style dataset whose sampler is Lightning's"
    )


def batches_of(loader: Any, shard: int, begin: int = 0) -> Iterator[list[Any]]:
    """A shard's batches of the current epoch, as sample indices, from batch ``begin`` on."""
    sampler = _sampler_of(loader.sampler, shard)
    if hasattr(sampler, "iterate_from"):
        sampler.ahead = iter
        yield from sampler.iterate_from(begin)
    else:
        whole = BatchSampler(sampler, loader.batch_sampler.batch_size, loader.batch_sampler.drop_last)
        yield from islice(whole, begin, None)


def _sampler_of(sampler: Any, shard: int) -> Any:
    if is_wrapped(sampler):
        return samples_of(sampler, shard)
    other = copy.copy(sampler)
    other.rank = shard
    return other


def loader_of(loader: Any, shard: int, begin: int, seeds: tuple[int, int]) -> Iterator[Any]:
    """A shard's batches of the current epoch, from batch ``begin`` on, read and collated like the loader's.

    Args:
        loader: This rank's loader.
        shard: The shard.
        begin: Index of the first batch.
        seeds: The job's seed and the epoch's number, which seed the random numbers of data loading.

    """
    keep = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
    settings = {name: getattr(loader, name) for name in keep}
    found = enumerate(batches_of(loader, shard, begin), begin)
    batches = cast("list[list[int]]", [seeded_batch(batch, *seeds, number, shard) for number, batch in found])
    if loader.batch_size is None and loader.batch_sampler is None:  # its sampler returns complete batches
        return iter(DataLoader(loader.dataset, sampler=batches, batch_size=None, **settings))
    return iter(DataLoader(loader.dataset, batch_sampler=batches, **settings))


def as_shard(positions: Positions, shard: int) -> None:
    """Convert the positions of another rank's loaders to those of a shard; they differ in the samplers' rank.

    A sampler may appear at several paths, as Lightning keeps the arguments of batch samplers that a hook creates.
    """
    for position in chain(positions["training"], positions["validation"]):
        for captured in filter(None, ((position or {}).get(name) for name in ("birth", "order", "now"))):
            captured["scalars"].update({path: shard for path in captured["scalars"] if _SAMPLERS_RANK.match(path)})


class _Shards:
    """Returns a rank's shards. A class, as its function refers to the training's state, such as the current batch."""

    holds_no_order = True

    def __init__(self, now: Callable[[], Sequence[int]]) -> None:
        self.now = now


class _Sharded:
    """Replaces an evaluation loader's batch sampler, or sampler: the batches of several shards in sequence."""

    def __init__(self, loader: Any, name: str, shards: Callable[[], Sequence[int]], seed: int, limit: float) -> None:
        self._own, self._sampler, self._shards = getattr(loader, name), loader.sampler, _Shards(shards)
        self._seed, size = seed, len(self._own)
        self._limit = min(size, limit) if isinstance(limit, int) else int(size * limit)  # as in Lightning

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_own"], name)

    def _of(self, shard: int) -> Any:
        sampler, own = _sampler_of(self._sampler, shard), self._own
        return sampler if own is self._sampler else BatchSampler(sampler, own.batch_size, own.drop_last)

    def __iter__(self) -> Iterator[Any]:
        for shard in self._shards.now():
            for number, batch in enumerate(islice(self._of(shard), self._limit)):
                yield seeded_batch(batch, self._seed, EVALUATION, number, shard)

    def __len__(self) -> int:
        return self._limit * len(self._shards.now())


def is_distributed(loader: Any) -> bool:
    """Whether an evaluation loader has this rank's shard of the data rather than all of it."""
    return isinstance(loader, DataLoader) and isinstance(loader.sampler, DistributedSampler)


def set_epoch(loader: Any, epoch: int) -> None:
    """Make a loader's sampler draw the order of an epoch."""
    for sampler in (loader.sampler, loader.batch_sampler):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)


def evaluate_shards(loader: Any, shards: Callable[[], Sequence[int]], seed: int, limit: float = 1.0) -> bool:
    """Make an evaluation loader return the batches of all of this rank's shards.

    Args:
        loader: Evaluation loader; not changed if its data is not distributed.
        shards: Returns this rank's shards.
        seed: The job's seed of random numbers.
        limit: Lightning's limit for each shard: a number of batches (int), or a fraction of them (float).

    Returns:
        Whether the loader was changed; its length is then that of all shards.

    """
    if not isinstance(loader, DataLoader):
        return False
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    if is_distributed(loader):
        draw_together(loader.sampler, seed)
        if not isinstance(getattr(loader, name), _Sharded):
            # torch refuses a plain assignment.
            object.__setattr__(loader, name, _Sharded(loader, name, shards, seed, limit))
            if loader._iterator is not None:  # that of persistent workers, which must be recreated
                loader._iterator._index_sampler = loader._index_sampler
    return isinstance(getattr(loader, name), _Sharded)
