# SPDX-License-Identifier: Apache-2.0
"""The tensors within a value: in lists, tuples, sets, mappings and dataclasses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def map_tensors(value: Any, change: Callable[[Tensor], Any], itself: Callable[[Any], Any] | None = None) -> Any:
    """``value`` with its tensors changed.

    Args:
        value: Any structure.
        change: Called with each tensor.
        itself: Called with each object that has ``smp_slice``. Default: they are treated like any other.

    """
    if isinstance(value, Tensor):
        return change(value)
    if itself is not None and hasattr(value, "smp_slice"):
        return itself(value)
    return map_entries(value, lambda entry, _: map_tensors(entry, change, itself))


def copied(value: Any) -> Any:
    """``value`` with tensors and containers of its own, which a step may change: the value is used again."""
    return map_tensors(value, Tensor.clone)


def map_entries(value: Any, change: Callable[[Any, str], Any]) -> Any:
    """A container of the same kind with changed entries; what is none is returned as it is.

    Args:
        value: A container, or anything else.
        change: Called with each entry and its place, such as ``['labels']``.

    """
    if isinstance(value, Mapping):
        return like(value, {key: change(entry, f"[{key!r}]") for key, entry in value.items()})
    if isinstance(value, list | tuple | set):
        return like(value, [change(entry, f"[{place}]") for place, entry in enumerate(value)])
    if is_dataclass(value) and not isinstance(value, type):
        found = copy.copy(value)
        for name in (field.name for field in fields(value) if hasattr(value, field.name)):
            object.__setattr__(found, name, change(getattr(value, name), f".{name}"))  # it may be frozen
        return found
    return value


def entries(value: Any) -> Iterable[Any]:
    """The entries of a container; of what is none, nothing."""
    found: list[Any] = []
    map_entries(value, lambda entry, _: found.append(entry))
    return found


def like(original: Any, content: Any) -> Any:
    """``content`` as the kind of container that ``original`` is."""
    kind = type(original)
    if isinstance(original, tuple) and hasattr(original, "_fields"):
        return kind(*content)
    try:
        return kind(content)
    except TypeError:
        return content
