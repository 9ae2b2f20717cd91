# SPDX-License-Identifier: Apache-2.0
"""What an object or a class has, though its own code, such as ``__getattr__``, may raise anything.

``hasattr`` and ``isinstance`` with a protocol call that code: a dictionary whose keys are attributes raises ``KeyError``.
"""

from __future__ import annotations

import types


def own_attributes(value: object) -> dict[str, object]:
    """An object's ``__dict__``; empty if it has none."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except Exception:  # a property of this name, such as of a proxy
        return {}
    return found if isinstance(found, dict) else {}


def answers(value: object, name: str) -> bool:
    """Whether an object has an attribute; not if asking for it fails."""
    try:
        return hasattr(value, name)
    except Exception:
        return False


def in_class(kind: type, name: str) -> bool:
    """Whether a class or one of its bases defines ``name``."""
    return any(name in vars(base) for base in kind.__mro__)


def has_plain_dict(kind: type) -> bool:
    """Whether objects of a class have a ``__dict__`` that is not the class's own code."""
    found = next((vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)), None)
    return isinstance(found, types.GetSetDescriptorType)
