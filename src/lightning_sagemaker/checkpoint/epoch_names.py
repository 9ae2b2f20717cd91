# SPDX-License-Identifier: Apache-2.0
"""Finds attributes with values of the current epoch: those that hooks of an epoch's start or end set or empty.

A run that resumes within an epoch does not repeat the hooks of its start. Without the values that these set, and that were
added since, the hooks of its end would get no values (``torch.stack([])``), or those of a part of the epoch.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator
from types import CodeType

from lightning_sagemaker.checkpoint.records import package_of

HOOKS = ("on_train_epoch_start", "on_train_epoch_end")
_SETS = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_SETS_ENTRIES = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
_LOADS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_VIEWS = frozenset({"values", "items", "keys"})
_EMPTIES = frozenset({"clear", "pop", "popleft", "reset", "zero_", "fill_"})
"""Methods that empty the container in an attribute."""
_LIBRARIES = frozenset({"builtins", "torch", "lightning", "pytorch_lightning"})


def names_reset(kind: type, hooks: Iterable[str] = HOOKS) -> set[str]:
    """Names of the attributes that a class's hooks, and its methods that these call, set or empty.

    Args:
        kind: A class of the script. Names of attributes of other objects that they set are included.
        hooks: Names of the hooks.

    """
    pending = [code for hook in hooks for code in _codes(kind, hook)]
    found: set[str] = set()
    seen: set[CodeType] = set()
    while pending:
        code = pending.pop()
        if code not in seen:
            seen.add(code)
            found |= set(_reset_in(code))
            pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
            pending += [one for name in code.co_names for one in _codes(kind, name)]
    return found


def _codes(kind: type, name: str) -> Iterator[CodeType]:
    """Code of a method, and of the methods of this name that it may call by ``super()``."""
    for base in kind.__mro__:
        method = vars(base).get(name)
        function = inspect.unwrap(method) if inspect.isfunction(method) else None
        if inspect.isfunction(function) and package_of(base) not in _LIBRARIES:
            yield function.__code__


def _reset_in(code: CodeType) -> Iterator[str]:
    attribute = ""
    for step in dis.get_instructions(code):
        if step.opname in _SETS:
            yield step.argval
        elif step.opname in _SETS_ENTRIES or (step.opname in _LOADS and step.argval in _EMPTIES):
            yield attribute
        elif step.opname in _LOADS and step.argval not in _VIEWS:
            attribute = step.argval
