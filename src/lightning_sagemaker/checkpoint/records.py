# SPDX-License-Identifier: Apache-2.0
"""Records: objects of a script's own classes with plain attributes only, such as the ``AverageMeter`` of many scripts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from lightning_sagemaker.checkpoint.static_view import has_plain_dict, in_class, own_attributes

LIBRARIES = frozenset(
    {"torch", "torchmetrics", "lightning", "pytorch_lightning", "lightning_sagemaker", "transformers", "peft"}
)
"""Packages whose classes keep changing values in buffers, parameters or states."""
_MOST = 100
"""Maximum entries of a container that is searched."""
_known: dict[type, bool] = {}
"""Cached results of :func:`is_of_script`; mypy takes no class for hashable, as ``functools.cache`` needs it."""


def records_in(name: str, value: object, is_plain: Callable[[object], bool]) -> Iterator[tuple[str, object]]:
    """The records in an attribute: its value, or entries of a list, a tuple or a dict.

    Args:
        name: Name of the attribute.
        value: Value of the attribute.
        is_plain: Whether a value is plain.

    Returns:
        Unique names and records.

    """
    entries: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict) and len(value) <= _MOST:
        entries = value.items()
    elif isinstance(value, (list, tuple)) and len(value) <= _MOST:
        entries = enumerate(value)
    else:
        entries = [("", value)]
    for key, entry in entries:
        if is_of_script(type(entry)) and all(map(is_plain, own_attributes(entry).values())):
            yield f"{name}.{key}".rstrip("."), entry


def is_of_script(kind: type) -> bool:
    """Whether a class and its bases are not of a library, and have no ``state_dict``."""
    if kind not in _known:
        packages = {package_of(base) for base in kind.__mro__ if base is not object}
        is_own = packages.isdisjoint(LIBRARIES | sys.stdlib_module_names - {"__main__"})
        _known[kind] = is_own and has_plain_dict(kind) and not in_class(kind, "state_dict")
    return _known[kind]


def package_of(kind: type) -> str:
    """Name of the package that defines a class."""
    return kind.__module__.partition(".")[0]


def is_library(kind: type) -> bool:
    """Whether one of :data:`LIBRARIES` defines a class."""
    return package_of(kind) in LIBRARIES
