# SPDX-License-Identifier: Apache-2.0
"""Cuts a batch into microbatches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lightning_sagemaker.parallel.degrees import ParallelConfigError


def split(value: Any, count: int, axis: int = 0, name: str = "the batch") -> list[Any]:
    """Cut each tensor in ``value`` into equal parts, through lists, tuples, sets, mappings and objects with ``smp_slice``.

    What is no tensor is the same in each microbatch.

    Args:
        value: Of any structure.
        count: Number of microbatches.
        axis: That is cut.
        name: For errors.

    Raises:
        ParallelConfigError: If a tensor's size does not divide.

    """
    if count == 1:
        return [value]
    if isinstance(value, Tensor):
        return _split_tensor(value, count, axis, name)
    if hasattr(value, "smp_slice"):
        return [value.smp_slice(count, number, axis) for number in range(count)]
    if isinstance(value, Mapping):
        parts = {key: split(entry, count, axis, f"{name}[{key!r}]") for key, entry in value.items()}
        return [_like(value, {key: part[number] for key, part in parts.items()}) for number in range(count)]
    if isinstance(value, list | tuple | set):
        pieces = [split(entry, count, axis, f"{name}[{place}]") for place, entry in enumerate(value)]
        return [_like(value, [piece[number] for piece in pieces]) for number in range(count)]
    return [value] * count


def _split_tensor(tensor: Tensor, count: int, axis: int, name: str) -> list[Any]:
    if tensor.dim() <= axis:
        return [tensor] * count  # a number holds for all samples
    if tensor.shape[axis] % count:
        raise ParallelConfigError(
            f"{name} has {tensor.shape[axis]} samples, which {count} microbatches do not divide. HINT: make the batch a"
            f" multiple of {count} (with drop_last=True in the loader), or lower microbatches."
        )
    return list(tensor.chunk(count, axis)) if tensor.shape[axis] else [tensor] * count


def _like(original: Any, content: Any) -> Any:
    """``content`` as the kind of container that ``original`` is."""
    kind = type(original)
    if isinstance(original, tuple) and hasattr(original, "_fields"):
        return kind(*content)
    try:
        return kind(content)
    except TypeError:
        return content
