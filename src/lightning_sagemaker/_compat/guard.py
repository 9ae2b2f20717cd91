# SPDX-License-Identifier: Apache-2.0
"""Private names of other libraries: an error where one is gone, instead of something that silently no longer happens."""

from __future__ import annotations

import copyreg
import dis
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module


class NameGone(ImportError):
    """A private name of another library, which this package needs, is not there in the installed version."""


def require(owner: object, *names: str) -> None:
    """See that a class or module still has names.

    Raises:
        NameGone: If it lacks one.

    """
    for name in names:
        if not hasattr(owner, name):
            where = f"{getattr(owner, '__module__', '')}.{getattr(owner, '__qualname__', owner)}".strip(".")
            raise NameGone(
                f"{where} has no {name!r}, which this version of lightning-sagemaker needs."
                " HINT: install the versions of lightning and torch that it was tested with, or a newer lightning-sagemaker."
            )


def check(names: Mapping[str, tuple[str, ...]], only_loaded: bool = True) -> None:
    """See that every name of a table is there.

    Args:
        names: Table as in ``names_torch.py``, with the packages' real names.
        only_loaded: Leave out modules that nothing has loaded yet.

    Raises:
        NameGone: If a name, or the class that had it, is gone.

    """
    for owner, wanted in names.items():
        module_name, _, class_name = owner.partition(":")
        if only_loaded and module_name not in sys.modules:
            continue
        module = import_module(module_name)
        if class_name:
            require(module, class_name)
        found: object = getattr(module, class_name) if class_name else module
        missing = (name for name in wanted if not hasattr(found, name))
        require(found, *(name for name in missing if not (isinstance(found, type) and _is_set_by_methods(found, name))))


def _is_set_by_methods(kind: type, name: str) -> bool:
    """Whether objects of a class have a name that its methods, or its properties' setters, give them."""
    values = (getattr(value, "fset", None) or value for base in kind.__mro__ for value in vars(base).values())
    functions = (inspect.unwrap(value) for value in values if callable(value))
    codes = [function.__code__ for function in functions if inspect.isfunction(function)]
    return any(
        step.opname == "STORE_ATTR" and step.argval == name
        for code in codes
        if name in code.co_names
        for step in dis.get_instructions(code)
    )


def shadow(owner: object, name: str, replacement: Callable[..., object]) -> None:
    """Give one object another method in the place of its class's.

    Raises:
        NameGone: If its class has no such method, so that nobody would call the replacement.

    """
    require(type(owner), name)
    vars(owner)[name] = replacement


class TakenOver:
    """Methods of objects that are replaced for a while, and given back. Copies, also in files, have their class's own."""

    def __init__(self) -> None:
        self._taken: list[tuple[object, str]] = []

    def take(self, owner: object, name: str, make: Callable[..., Callable[..., object]]) -> None:
        """Replace a method by what ``make`` makes of it.

        Raises:
            NameGone: If there is no such method.

        """
        shadow(owner, name, _Replacement(make(getattr(owner, name))))
        if type(owner) not in copyreg.dispatch_table:  # else by a way of the script's own
            copyreg.pickle(type(owner), _without_replacements)  # type: ignore[arg-type]
        self._taken.append((owner, name))

    def give_back(self) -> None:
        """Leave the objects as they were found."""
        for owner, name in reversed(self._taken):
            vars(owner).pop(name, None)
        self._taken.clear()


class _Replacement:
    """Known among an object's attributes by its class."""

    def __init__(self, method: Callable[..., object]) -> None:
        self._method = method

    def __call__(self, *arguments: object, **named: object) -> object:
        return self._method(*arguments, **named)


def _without_replacements(owner: object) -> str | tuple[object, ...]:
    """What ``pickle`` and ``copy`` make of an object, without the methods that were taken over, which lead to a Trainer.

    In a file that is read as data nothing else could stand for them: it names no functions.
    """
    reduced = owner.__reduce_ex__(2)
    if isinstance(reduced, str) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    state = {name: value for name, value in reduced[2].items() if not isinstance(value, _Replacement)}
    return (*reduced[:2], state, *reduced[3:])
