# SPDX-License-Identifier: Apache-2.0
"""Splits a batch into microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeGuard

import numpy as np
from torch import Tensor

from lightning_sagemaker.parallel.containers import entries, map_entries
from lightning_sagemaker.parallel.degrees import ParallelConfigError


class Microbatches(NamedTuple):
    """A batch, split into parts.

    Attributes:
        parts: The microbatches, at least one.
        weights: Fraction of the batch's samples in each part; the sum is 1.
        reason: Why the batch was not split; empty if it was.

    """

    parts: Sequence[object]
    weights: Sequence[float]
    reason: str = ""


class Cut:
    """Splits the batches of a loader.

    The samples are the rows of a batch's tensors (k rows per sample are possible), and the entries of lists that were not
    collated. Lists without tensors, and arrays, with one entry per sample are split with them. Values without a
    first dimension are the same in each part. If the samples cannot be identified, there is one part.

    Args:
        count: Number of microbatches.
        batch_size: Batch size of the loader; None if unknown.

    """

    def __init__(self, count: int, batch_size: int | None = None) -> None:
        self._count, self._batch_size = count, batch_size
        self._known: dict[str, bool] = {}  # path of a list in a full batch -> whether it holds samples

    def __call__(self, batch: object) -> Microbatches:
        """Split a batch into parts that are as even as possible, each weighted by its samples.

        Args:
            batch: Any structure.

        Raises:
            ParallelConfigError: If an object with ``smp_slice`` is among samples that cannot be split evenly.

        """
        count = self._count
        sizes = self._sizes(batch)
        known = [size for size in sizes if size is not None]
        if count == 1 or not sizes:
            return _one_part(batch, f"no tensor was found in it ({type(batch).__name__})" if count > 1 else "")
        if not known:
            return Microbatches(split(batch, count), [1 / count] * count)
        samples = self._batch_size if self._batch_size in known else min(known)
        others = [size for size in known if not samples or size % samples]
        if None in sizes and (others or samples % count):
            raise _indivisible("the batch", max(known), count)
        if others:
            return _one_part(batch, f"its tensors have different first dimensions: {', '.join(map(str, known))}")
        count = min(count, samples)
        lengths = [samples // count + (number < samples % count) for number in range(count)]
        bounds = [0, *accumulate(lengths)]
        parts = [
            self._part(batch, samples, count, number, slice(*bounds[number : number + 2])) for number in range(count)
        ]
        return Microbatches(parts, [length / samples for length in lengths])

    def _part(self, value: object, samples: int, count: int, number: int, own: slice, place: str = "") -> object:
        """The samples ``own`` of a batch, or of an entry of it."""
        if isinstance(value, Tensor):
            rows = value.shape[0] // samples if value.dim() else 0
            return value[own.start * rows : own.stop * rows] if rows else value
        if hasattr(value, "smp_slice"):
            return value.smp_slice(count, number, 0)
        if isinstance(value, np.ndarray):
            return value[own] if value.shape[:1] == (samples,) else value
        if _is_plain_list(value) and (self._is_uncollated(value, place) or _has_one_of_each(value, samples)):
            return value[own]
        return map_entries(value, lambda entry, at: self._part(entry, samples, count, number, own, place + at))

    def _sizes(self, value: object, place: str = "") -> list[int | None]:
        """Possible numbers of samples, without duplicates; None stands for an object that splits itself."""
        if isinstance(value, Tensor):
            return [value.shape[0]] if value.dim() else []
        if hasattr(value, "smp_slice"):
            return [None]
        if _is_plain_list(value) and self._is_uncollated(value, place):
            return [len(value)]
        found: dict[int | None, None] = {}
        map_entries(value, lambda entry, at: found.update(dict.fromkeys(self._sizes(entry, place + at))))
        return list(found)

    def _is_uncollated(self, value: Sequence[object], place: str) -> bool:
        """Whether a batch, or an entry of it, is a list of uncollated samples.

        A list with as many entries as the loader's batch size is one, unless its tensors have as many rows. The list at the
        same path of a shorter batch, such as an epoch's last, is treated as in a full one. Without one, it counts if its
        entries are containers of the same form whose tensors have different numbers of rows.
        """
        if self._batch_size is None or not value:
            return False
        if place not in self._known:
            sizes = {size for entry in value for size in Cut(1)._sizes(entry)}
            forms = {_form(entry) for entry in value}
            if len(value) != self._batch_size:
                return isinstance(value[0], Mapping) and len(forms) == 1 and len(sizes) > 1
            is_full = max((size for size in sizes if size is not None), default=0) >= self._batch_size
            self._known[place] = bool(sizes) and sizes != {self._batch_size} and (is_full or len(forms) == 1)
        return self._known[place]


def _one_part(batch: object, reason: str) -> Microbatches:
    return Microbatches([batch], [1.0], reason)


def _has_one_of_each(value: Sequence[object], samples: int) -> bool:
    """Whether ``value`` is a list with one entry per sample."""
    return len(value) == samples and not any(map(Cut(1)._sizes, value))


def _form(entry: object) -> object:
    """The form of an entry, which samples share and the columns of a small table do not."""
    if isinstance(entry, Tensor):
        return entry.dtype, entry.dim()
    return tuple(entry) if isinstance(entry, Mapping) else type(entry)


def _is_plain_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple) and not hasattr(value, "_fields")


def split(value: object, count: int, axis: int = 0, name: str = "the batch") -> list[object]:
    """Split each tensor in ``value`` into equal parts, through containers, dataclasses and objects with ``smp_slice``.

    What is not a tensor is the same in each microbatch.

    Args:
        value: Any structure.
        count: Number of microbatches.
        axis: Axis to split.
        name: Name of the value in error messages.

    Raises:
        ParallelConfigError: If a tensor's size is not divisible.

    """
    if count == 1:
        return [value]
    if isinstance(value, Tensor):
        return _split_tensor(value, count, axis, name)
    if hasattr(value, "smp_slice"):
        return [value.smp_slice(count, number, axis) for number in range(count)]
    if not any(True for _ in entries(value)):
        return [value] * count
    pieces: dict[str, list[object]] = {}

    def note(entry: object, place: str) -> None:
        pieces[place] = split(entry, count, axis, name + place)

    map_entries(value, note)
    return [_at(value, pieces, number) for number in range(count)]


def _at(value: object, pieces: Mapping[str, Sequence[object]], number: int) -> object:
    return map_entries(value, lambda _, place: pieces[place][number])


def _split_tensor(tensor: Tensor, count: int, axis: int, name: str) -> list[object]:
    if tensor.dim() <= axis:
        return [tensor] * count  # a scalar applies to all samples
    if tensor.shape[axis] % count:
        raise _indivisible(name, tensor.shape[axis], count)
    return list(tensor.chunk(count, axis)) if tensor.shape[axis] else [tensor] * count


def _indivisible(name: str, samples: int, count: int) -> ParallelConfigError:
    return ParallelConfigError(
        f"{name} has {samples} samples, which is not divisible into {count} microbatches. HINT: make the batch a multiple of"
        f" {count} (with drop_last=True in the loader), or lower microbatches."
    )
