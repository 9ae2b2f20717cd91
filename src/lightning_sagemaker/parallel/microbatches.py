# SPDX-License-Identifier: Apache-2.0
"""Splits a batch into microbatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from lightning_sagemaker.parallel.degrees import ParallelConfigError


class Microbatches(NamedTuple):
    """A batch in parts.

    Attributes:
        parts: At least one.
        weights: Share of each part in the samples of the batch; their sum is 1.

    """

    parts: list[Any]
    weights: list[float]


def cut(batch: Any, count: int) -> Microbatches:
    """Split each tensor in ``batch`` into at most ``count`` parts, as even as possible.

    A batch of fewer samples than ``count`` has one part per sample. Parts of different sizes are weighted by their
    samples.

    Args:
        batch: Any structure.
        count: Number of microbatches.

    Raises:
        ParallelConfigError: If parts cannot be even, and the batch dimension is ambiguous.

    """
    try:
        parts = split(batch, count)
        return Microbatches(parts, [1 / len(parts)] * len(parts))
    except ParallelConfigError:
        sizes = _sizes(batch)
        if len(sizes) != 1 or None in sizes:
            raise
    samples = next(size for size in sizes if size is not None)
    count = min(count, samples)
    lengths = [samples // count + (number < samples % count) for number in range(count)]
    starts = [sum(lengths[:number]) for number in range(count)]
    parts = [_rows(batch, start, length) for start, length in zip(starts, lengths, strict=True)]
    return Microbatches(parts, [length / samples for length in lengths])


def _rows(batch: Any, start: int, length: int) -> Any:
    return map_tensors(batch, lambda tensor: tensor.narrow(0, start, length) if tensor.dim() else tensor, _unchanged)


def _sizes(batch: Any) -> set[int | None]:
    """First dimensions of the tensors; None for an object that splits itself."""
    found: set[int | None] = set()

    def note(tensor: Tensor) -> Tensor:
        if tensor.dim():
            found.add(tensor.shape[0])
        return tensor

    def itself(value: Any) -> Any:
        found.add(None)
        return value

    map_tensors(batch, note, itself)
    return found


def _unchanged(value: Any) -> Any:
    return value


def map_tensors(value: Any, change: Callable[[Tensor], Any], itself: Callable[[Any], Any] | None = None) -> Any:
    """``value`` with its tensors changed, in the containers that :func:`split` traverses.

    Args:
        value: Any structure.
        change: Called with each tensor.
        itself: Called with each object that has ``smp_slice``. Default: they are treated like any other.

    """
    if isinstance(value, Tensor):
        return change(value)
    if itself is not None and hasattr(value, "smp_slice"):
        return itself(value)
    if isinstance(value, Mapping):
        return like(value, {key: map_tensors(entry, change, itself) for key, entry in value.items()})
    if isinstance(value, list | tuple | set):
        return like(value, [map_tensors(entry, change, itself) for entry in value])
    return value


def split(value: Any, count: int, axis: int = 0, name: str = "the batch") -> list[Any]:
    """Split each tensor in ``value`` into equal parts, through lists, tuples, sets, mappings and objects with ``smp_slice``.

    What is not a tensor is the same in each microbatch.

    Args:
        value: Any structure.
        count: Number of microbatches.
        axis: Axis to split.
        name: For errors.

    Raises:
        ParallelConfigError: If a tensor's size is not divisible.

    """
    if count == 1:
        return [value]
    if isinstance(value, Tensor):
        return _split_tensor(value, count, axis, name)
    if hasattr(value, "smp_slice"):
        return [value.smp_slice(count, number, axis) for number in range(count)]
    if isinstance(value, Mapping):
        parts = {key: split(entry, count, axis, f"{name}[{key!r}]") for key, entry in value.items()}
        return [like(value, {key: part[number] for key, part in parts.items()}) for number in range(count)]
    if isinstance(value, list | tuple | set):
        pieces = [split(entry, count, axis, f"{name}[{place}]") for place, entry in enumerate(value)]
        return [like(value, [piece[number] for piece in pieces]) for number in range(count)]
    return [value] * count


def _split_tensor(tensor: Tensor, count: int, axis: int, name: str) -> list[Any]:
    if tensor.dim() <= axis:
        return [tensor] * count  # a number holds for all samples
    if tensor.shape[axis] % count:
        raise ParallelConfigError(
            f"{name} has {tensor.shape[axis]} samples, which is not divisible into {count} microbatches. HINT: make "
            "the batch a"
            f" multiple of {count} (with drop_last=True in the loader), or lower microbatches."
        )
    return list(tensor.chunk(count, axis)) if tensor.shape[axis] else [tensor] * count


def like(original: Any, content: Any) -> Any:
    """``content`` as the kind of container that ``original`` is."""
    kind = type(original)
    if isinstance(original, tuple) and hasattr(original, "_fields"):
        return kind(*content)
    try:
        return kind(content)
    except TypeError:
        return content
