# SPDX-License-Identifier: Apache-2.0
"""Merges a step's results for microbatches into the result for the full batch; tensors within results."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from lightning_sagemaker._compat import pytree
from lightning_sagemaker.parallel.containers import map_entries


def merge(parts: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
    """Merge the results of microbatches: rows are concatenated, numbers averaged.

    Tensors and arrays with dimensions are concatenated along the first, those without and numbers are averaged, lists,
    tuples of strings and sets are joined, other tuples, mappings and dataclasses of equal form are merged entry by entry,
    other mappings are united. Values that are equal in all parts stay one; others become a list.

    Args:
        parts: What the step returned for each microbatch.
        weights: Weight of each in a mean; their sum is 1. Default: equal.

    """
    first = parts[0]
    if len(parts) == 1 or first is None:
        return first
    if all(isinstance(part, Tensor) for part in parts):
        if not first.dim():
            return _mean(torch.stack(list(parts)), weights)
        return torch.cat(list(parts)) if len({part.shape[1:] for part in parts}) == 1 else list(parts)
    if all(isinstance(part, np.ndarray) and part.ndim for part in parts):
        return np.concatenate(list(parts)) if len({part.shape[1:] for part in parts}) == 1 else list(parts)
    if all(isinstance(part, Mapping) for part in parts):
        if all(part.keys() == first.keys() for part in parts):
            merged = {key: merge([part[key] for part in parts], weights) for key in first}
        else:
            merged = {key: value for part in parts for key, value in part.items()}
        return _as(type(first), merged)
    if all(isinstance(part, list) for part in parts):
        return [entry for part in parts for entry in part]
    if all(isinstance(part, set) for part in parts):
        return set().union(*parts)
    if all(isinstance(part, tuple) for part in parts):
        return _merged_tuples(parts, weights)
    if is_dataclass(first) and all(type(part) is type(first) for part in parts):
        return map_entries(first, lambda _, place: merge([getattr(part, place[1:]) for part in parts], weights))
    if all(isinstance(part, int | float | np.number) and not isinstance(part, bool) for part in parts):
        return sum(parts) / len(parts) if weights is None else sum(map(operator.mul, parts, weights))
    return first if all(_are_equal(part, first) for part in parts[1:]) else list(parts)


def _merged_tuples(parts: Sequence[tuple[Any, ...]], weights: Sequence[float] | None) -> tuple[Any, ...]:
    first = parts[0]
    is_of_samples = all(isinstance(entry, str) for part in parts for entry in part)
    if hasattr(first, "_fields") or (all(len(part) == len(first) for part in parts) and not is_of_samples):
        entries = [merge(list(column), weights) for column in zip(*parts, strict=True)]
        return type(first)(*entries) if hasattr(first, "_fields") else tuple(entries)
    return tuple(entry for part in parts for entry in part)


def _are_equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # of what is compared one by one
        return False


def _mean(values: Tensor, weights: Sequence[float] | None) -> Tensor:
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
