# SPDX-License-Identifier: Apache-2.0
"""Merges a step's results for microbatches into the result for the full batch; moves and detaches results."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_sagemaker._compat import pytree
from lightning_sagemaker.parallel.containers import map_entries

_Weights = Sequence[float] | None
_Array = npt.NDArray[np.generic]


def merge(parts: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
    """Merge the results of microbatches: tensors are concatenated, scalars averaged.

    Tensors and arrays are concatenated along the first dimension; scalars, with or without a tensor, are averaged; lists,
    tuples of strings and sets are joined; other tuples, mappings and dataclasses of equal form are merged entry by entry;
    other mappings are united. Of other values, equal ones are kept once, and different ones become a list.

    Args:
        parts: The step's result for each microbatch.
        weights: Weight of each part in a mean, with sum 1. Default: equal weights.

    """
    first = parts[0]
    if len(parts) == 1 or first is None:
        return first
    for kinds, merged in _KINDS:
        if all(isinstance(part, kinds) for part in parts):
            return merged(parts, weights)
    if is_dataclass(first) and all(type(part) is type(first) for part in parts):
        return map_entries(first, lambda _, place: merge([getattr(part, place[1:]) for part in parts], weights))
    return _merged_others(parts)


def _merged_tensors(parts: Sequence[Tensor], weights: _Weights) -> Tensor | list[Tensor]:
    if not parts[0].dim():
        return _mean(torch.stack(list(parts)), weights)
    return torch.cat(list(parts)) if len({part.shape[1:] for part in parts}) == 1 else list(parts)


def _merged_arrays(parts: Sequence[_Array], weights: _Weights) -> object:
    if not all(part.ndim for part in parts):
        return _merged_others(parts)
    return np.concatenate(list(parts)) if len({part.shape[1:] for part in parts}) == 1 else list(parts)


def _merged_mappings(parts: Sequence[Mapping[object, object]], weights: _Weights) -> object:
    first = parts[0]
    if all(part.keys() == first.keys() for part in parts):
        merged = {key: merge([part[key] for part in parts], weights) for key in first}
    else:
        merged = {key: value for part in parts for key, value in part.items()}
    return _as(type(first), merged)


def _merged_lists(parts: Sequence[list[object]], weights: _Weights) -> list[object]:
    return [entry for part in parts for entry in part]


def _merged_sets(parts: Sequence[set[object]], weights: _Weights) -> set[object]:
    return set().union(*parts)


def _merged_tuples(parts: Sequence[tuple[object, ...]], weights: _Weights) -> tuple[object, ...]:
    first = parts[0]
    is_of_samples = all(isinstance(entry, str) for part in parts for entry in part)
    if hasattr(first, "_fields") or (all(len(part) == len(first) for part in parts) and not is_of_samples):
        entries = [merge(list(column), weights) for column in zip(*parts, strict=True)]
        return type(first)(*entries) if hasattr(first, "_fields") else tuple(entries)
    return tuple(entry for part in parts for entry in part)


def _merged_numbers(parts: Sequence[float], weights: _Weights) -> object:
    if any(isinstance(part, bool) for part in parts):
        return _merged_others(parts)
    return sum(parts) / len(parts) if weights is None else sum(map(operator.mul, parts, weights))


def _merged_others(parts: Sequence[object]) -> object:
    return parts[0] if all(_are_equal(part, parts[0]) for part in parts[1:]) else list(parts)


_KINDS: tuple[tuple[type | tuple[type, ...], Callable[..., object]], ...] = (
    (Tensor, _merged_tensors),
    (np.ndarray, _merged_arrays),
    (Mapping, _merged_mappings),
    (list, _merged_lists),
    (set, _merged_sets),
    (tuple, _merged_tuples),
    ((int, float, np.number), _merged_numbers),
)
"""Type of all parts -> function that merges them."""


def _are_equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # values whose comparison is elementwise, or fails
        return False


def _mean(values: Tensor, weights: _Weights) -> Tensor:
    if weights is None:
        return values.float().mean().to(values.dtype)
    return (values.float() * values.new_tensor(weights, dtype=torch.float32)).sum().to(values.dtype)


T = TypeVar("T")


def _as(kind: type, content: dict[object, object]) -> object:
    try:
        return kind(content)
    except TypeError:
        return content


def detached(value: T) -> T:
    """``value`` with its tensors detached."""
    found: T = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach(), value)
    return found


def moved_to(value: T, device: torch.device | str) -> T:
    """``value`` with its tensors on ``device``."""
    found: T = pytree.tree_map_only(Tensor, functools.partial(_move, device), value)
    return found


def _move(device: torch.device | str, tensor: Tensor) -> Tensor:
    return tensor.to(device)
