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
    """Methods of objects that are replaced for a while, and given back. Copies, also in files, have those from before."""

    def __init__(self) -> None:
        self._taken: list[tuple[object, str, _Replacement]] = []

    def take(self, owner: object, name: str, make: Callable[..., Callable[..., object]]) -> None:
        """Replace a method by what ``make`` makes of it.

        Raises:
            NameGone: If there is no such method.

        """
        require(type(owner), name)
        replacement = _Replacement(vars(owner).get(name), getattr(owner, name), make)
        shadow(owner, name, replacement)
        if type(owner) not in copyreg.dispatch_table:  # else by a way of the script's own
            copyreg.pickle(type(owner), _without_replacements)  # type: ignore[arg-type]
        self._taken.append((owner, name, replacement))

    def give_back(self) -> None:
        """Leave the objects as they were found, except for what the script has put in the place of a replacement since."""
        for owner, name, replacement in reversed(self._taken):
            replacement.end()
            attributes = vars(owner)
            if attributes.get(name) is replacement:
                attributes.update(_as_found({name: attributes.pop(name)}, only_ended=True))
        self._taken.clear()


class _Replacement:
    """Known among an object's attributes by its class.

    Args:
        found: The object's own attribute, if it had one, rather than its class.
        replaced: The method.
        make: What makes another of it.

    """

    def __init__(
        self, found: object, replaced: Callable[..., object], make: Callable[..., Callable[..., object]]
    ) -> None:
        self.found, self.has_ended = found, False
        self._replaced, self._method = replaced, make(replaced)

    def __call__(self, *arguments: object, **named: object) -> object:
        return self._method(*arguments, **named)

    def end(self) -> None:
        """Do what the replaced method does, for those who still call this."""
        self._method, self.has_ended = self._replaced, True


def _as_found(attributes: Mapping[str, object], only_ended: bool = False) -> dict[str, object]:
    """An object's attributes without replacements, or without those that have ended."""
    found = {}
    for name, value in attributes.items():
        own: object = value
        while isinstance(own, _Replacement) and (own.has_ended or not only_ended):
            own = own.found
        if own is not None or value is None:
            found[name] = own
    return found


def _without_replacements(owner: object) -> str | tuple[object, ...]:
    """What ``pickle`` and ``copy`` make of an object, without the methods that were taken over, which lead to a Trainer.

    In a file that is read as data nothing else could stand for them: it names no functions.
    """
    reduced = owner.__reduce_ex__(2)
    if isinstance(reduced, str) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    return (*reduced[:2], _as_found(reduced[2]), *reduced[3:])
