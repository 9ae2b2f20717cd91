# SPDX-License-Identifier: Apache-2.0
"""Records: objects of a script's own classes that have plain attributes only, as the ``AverageMeter`` of many scripts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

LIBRARIES = frozenset(
    {"torch", "torchmetrics", "lightning", "pytorch_lightning", "lightning_sagemaker", "transformers", "peft"}
)
"""Packages whose classes hold what they change in buffers, parameters or states."""
_MOST = 100
"""Entries of a container that is searched."""
_known: dict[type, bool] = {}
"""What :func:`is_of_script` has found."""


def records_in(name: str, value: object, is_plain: Callable[[object], bool]) -> Iterator[tuple[str, object]]:
    """The records in an attribute: itself, or those in a list, a tuple or a dict.

    Args:
        name: The attribute's.
        value: Its value.
        is_plain: Whether a value is plain.

    Returns:
        Each with a name of its own.

    """
    entries: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict) and len(value) <= _MOST:
        entries = value.items()
    elif isinstance(value, (list, tuple)) and len(value) <= _MOST:
        entries = enumerate(value)
    else:
        entries = [("", value)]
    for key, entry in entries:
        if is_of_script(type(entry)) and all(map(is_plain, vars(entry).values())):
            yield f"{name}.{key}".rstrip("."), entry


def is_of_script(kind: type) -> bool:
    """Whether a class and those it derives from have nothing of a library in them, nor a ``state_dict``."""
    if kind not in _known:
        packages = {base.__module__.partition(".")[0] for base in kind.__mro__ if base is not object}
        is_own = packages.isdisjoint(LIBRARIES | sys.stdlib_module_names - {"__main__"})
        _known[kind] = is_own and kind.__dictoffset__ != 0 and not hasattr(kind, "state_dict")
    return _known[kind]
