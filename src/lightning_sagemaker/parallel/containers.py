# SPDX-License-Identifier: Apache-2.0
"""The tensors within a value: in lists, tuples, sets, mappings and dataclasses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import TypeVar, cast

from torch import Tensor

T = TypeVar("T")


def map_tensors(value: T, change: Callable[[Tensor], object], itself: Callable[[object], object] | None = None) -> T:
    """A copy of ``value`` with ``change`` applied to its tensors.

    Args:
        value: Any structure.
        change: Called with each tensor; returns what replaces it.
        itself: The same for each object that has ``smp_slice``. Default: they are treated like any other object.

    """
    if isinstance(value, Tensor):
        return cast("T", change(value))
    if itself is not None and hasattr(value, "smp_slice"):
        return cast("T", itself(value))
    return map_entries(value, lambda entry, _: map_tensors(entry, change, itself))


def copied(value: T) -> T:
    """A copy of ``value`` with new tensors and containers, for a step that may write into them."""
    return map_tensors(value, Tensor.clone)


def map_entries(value: T, change: Callable[[object, str], object]) -> T:
    """A container of the same type with changed entries; anything else is returned unchanged.

    Args:
        value: A container, or anything else.
        change: Called with each entry and its path, such as ``['labels']``.

    """
    if isinstance(value, Mapping):
        return like(value, {key: change(entry, f"[{key!r}]") for key, entry in value.items()})
    if isinstance(value, list | tuple | set):
        return like(value, [change(entry, f"[{place}]") for place, entry in enumerate(value)])
    if is_dataclass(value) and not isinstance(value, type):
        found: T = copy.copy(value)
        for name in (field.name for field in fields(value) if hasattr(value, field.name)):
            object.__setattr__(found, name, change(getattr(value, name), f".{name}"))  # it may be frozen
        return found
    return value


def entries(value: object) -> Iterable[object]:
    """The entries of a container; none for anything else."""
    found: list[object] = []
    map_entries(value, lambda entry, _: found.append(entry))
    return found


def like(original: T, content: Iterable[object]) -> T:
    """A container of ``original``'s type with ``content``."""
    kind: Callable[..., T] = type(original)
    if isinstance(original, tuple) and hasattr(original, "_fields"):
        return kind(*content)
    try:
        return kind(content)
    except Exception:  # its constructor takes other arguments
        return _changed(original, content)


def _changed(original: T, content: Iterable[object]) -> T:
    found = copy.copy(original)
    if isinstance(found, MutableMapping) and isinstance(content, Mapping):
        for key, entry in content.items():
            found[key] = entry
        return found
    if isinstance(found, list):
        found[:] = content
        return found
    return cast("T", content)
