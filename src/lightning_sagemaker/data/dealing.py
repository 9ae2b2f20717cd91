# SPDX-License-Identifier: Apache-2.0
"""The rest of an epoch, redistributed to another number of processes or in other batches: each sample once.

It depends on how many samples, or which ones, have been trained on. Orders of this package and of torch's
``DistributedSampler`` do not depend on the number of processes, so a number of samples is the position. For other
orders the samples are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from functools import reduce
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

Integers = npt.NDArray[np.int64]


def is_counted(loader: Any) -> bool:
    """Whether a number of samples determines the loader's position."""
    sampler = getattr(loader, "sampler", None)
    return hasattr(sampler, "remaining") or type(sampler) is DistributedSampler


def batch_size_of(loader: Any) -> int | None:
    """Samples of one process in a batch; None if unknown."""
    sampler = getattr(loader, "sampler", None)
    within = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    size = getattr(sampler, "samples_per_batch", None) or within
    return int(size) if size else getattr(loader, "batch_size", None)


def as_bits(taken: Integers, size: int) -> torch.Tensor:
    """The consumed ones of ``size`` samples, as one bit each."""
    marks = np.zeros(size, dtype=bool)
    marks[taken[(taken >= 0) & (taken < size)]] = True
    return torch.from_numpy(np.packbits(marks))


def _marks(taken: torch.Tensor, size: int) -> npt.NDArray[np.bool_]:
    """The reverse of :func:`as_bits`."""
    return np.unpackbits(taken.numpy(), count=size).astype(bool)


def united(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """The union of the processes' consumed samples; None if it is unknown for one."""
    known = [part for part in parts if part is not None]
    return reduce(torch.bitwise_or, known) if known and len(known) == len(parts) else None


def remaining(
    loader: Any, place: dict[str, int], epoch: int, done: int, ordered_by: int, taken: Any
) -> Sequence[Any] | None:
    """This process's batches of the rest of an epoch, the same number on each process.

    Args:
        loader: The loader.
        place: ``num_replicas`` and ``rank``.
        epoch: Number of the epoch.
        done: Samples that have been trained on, over all processes.
        ordered_by: Global batch size by which they were ordered.
        taken: The samples that have been trained on, in the format of :func:`as_bits`.

    Returns:
        The batches as sample indices; None if the rest is unknown.

    """
    if not isinstance(loader, DataLoader):
        return None
    sampler = loader.sampler
    if hasattr(sampler, "remaining"):
        found: Sequence[Any] = sampler.remaining(done, ordered_by)
        return found
    if type(loader.batch_sampler) is not BatchSampler:
        return None
    if type(sampler) is DistributedSampler:
        rest = _order_of(sampler)
        # Without a record the epoch was in this order; with one, as of one process, which had no such sampler, in another.
        rest = rest[done:] if taken is None else rest[~_marks(taken, len(sampler.dataset))[rest]]  # type: ignore[arg-type]
    elif taken is not None and _gives_each_once(loader, place["num_replicas"]):
        rest = np.flatnonzero(~_marks(taken, len(loader.dataset)))  # type: ignore[arg-type]
        if isinstance(sampler, RandomSampler):
            rest = np.random.Generator(np.random.PCG64([epoch, done])).permutation(rest)
    else:
        return None
    return _batches(rest, place, done, loader.batch_sampler.batch_size, loader.drop_last)


def _gives_each_once(loader: DataLoader[object], ranks: int) -> bool:
    """Whether an epoch has all samples once, so that those that are left are its rest.

    An epoch of a subset, or one that is drawn with replacement, has others.
    """
    sampler, size = loader.sampler, len(loader.dataset)  # type: ignore[arg-type]
    inner = getattr(
        getattr(sampler, "dataset", None), "_sampler", sampler
    )  # Lightning's, which deals another's samples
    if getattr(inner, "replacement", False) or len(getattr(inner, "indices", range(size))) != size:
        return False
    length = len(sampler) if isinstance(sampler, Sized) else 0
    return length == size or abs(length * ranks - size) < ranks


def _order_of(sampler: DistributedSampler[Any]) -> Integers:
    """The samples of all processes, interleaved."""
    size = len(sampler.dataset)  # type: ignore[arg-type]
    whole: DistributedSampler[Any] = DistributedSampler(cast(Any, range(size)), 1, 0, sampler.shuffle, sampler.seed)
    whole.set_epoch(sampler.epoch)
    return np.fromiter(whole, dtype=np.int64, count=size)


def _batches(rest: Integers, place: dict[str, int], done: int, batch_size: int, drop_last: bool) -> list[list[int]]:
    """Assign samples as ``DistributedSampler`` does: round-robin, padded from the beginning to equal numbers.

    If the epoch stopped at a position that is not between two of these batches, the last one could have an unusual
    size, such as one sample, which BatchNorm refuses: then all batches have about the same size.
    """
    if not len(rest):
        return []
    ranks = place["num_replicas"]
    share = np.resize(rest, -(-len(rest) // ranks) * ranks)[place["rank"] :: ranks].tolist()
    if done % (batch_size * ranks) and not drop_last:
        return [part.tolist() for part in np.array_split(share, -(-len(share) // batch_size))]
    batches = [share[begin : begin + batch_size] for begin in range(0, len(share), batch_size)]
    return batches[:-1] if drop_last and len(batches[-1]) < batch_size else batches


def numbers_of(index: object) -> npt.NDArray[np.int64]:
    """The sample indices of a batch; -1 for what is no number."""
    try:
        return np.atleast_1d(np.asarray(cast(npt.ArrayLike, index), dtype=np.int64))
    except (TypeError, ValueError):  # indices may be names
        return np.full(len(index) if isinstance(index, list) else 1, -1, np.int64)
