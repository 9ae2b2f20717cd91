# SPDX-License-Identifier: Apache-2.0
"""Checks for private names of other libraries: a missing one is an error instead of silently having no effect."""

from __future__ import annotations

import copyreg
import dis
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module


class NameGone(ImportError):
    """A private name that this package needs is missing in the installed version of another library."""


def require(owner: object, *names: str) -> None:
    """Check that a class or module still has names.

    Raises:
        NameGone: If one is missing.

    """
    for name in names:
        if not hasattr(owner, name):
            where = f"{getattr(owner, '__module__', '')}.{getattr(owner, '__qualname__', owner)}".strip(".")
            raise NameGone(
                f"{where} has no {name!r}, which this version of lightning-sagemaker needs."
                " HINT: install the versions of lightning and torch that it was tested with, or a newer lightning-sagemaker."
            )


def check(names: Mapping[str, tuple[str, ...]], only_loaded: bool = True) -> None:
    """Check that every name of a table exists.

    Args:
        names: Table as in ``names_torch.py``, with the packages' real names.
        only_loaded: Skip modules that have not been imported yet.

    Raises:
        NameGone: If a name, or its class, is missing.

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
    """Whether methods or property setters of a class set an attribute of this name on its objects."""
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
    """Replace a method of one object.

    Raises:
        NameGone: If its class has no such method, so that the replacement would never be called.

    """
    require(type(owner), name)
    vars(owner)[name] = replacement


class TakenOver:
    """Temporarily replaced methods of objects. Copies and pickles of the objects have the methods from before."""

    def __init__(self) -> None:
        self._taken: list[tuple[object, str, _Replacement]] = []

    def take(self, owner: object, name: str, make: Callable[..., Callable[..., object]]) -> None:
        """Replace a method by ``make(method)``.

        Raises:
            NameGone: If there is no such method.

        """
        require(type(owner), name)
        replacement = _Replacement(vars(owner).get(name), getattr(owner, name), make)
        shadow(owner, name, replacement)
        if type(owner) not in copyreg.dispatch_table:  # otherwise the script has registered its own
            copyreg.pickle(type(owner), _without_replacements)  # type: ignore[arg-type]
        self._taken.append((owner, name, replacement))

    def restore(self) -> None:
        """Restore the methods, except where the script has since replaced a replacement."""
        for owner, name, replacement in reversed(self._taken):
            replacement.end()
            attributes = vars(owner)
            if attributes.get(name) is replacement:
                attributes.update(_as_found({name: attributes.pop(name)}, only_ended=True))
        self._taken.clear()


class _Replacement:
    """A replaced method, recognizable among an object's attributes by its class.

    Args:
        found: The object's own attribute; None if the method is its class's.
        replaced: The method.
        make: Called with the method; returns its replacement.

    """

    def __init__(
        self, found: object, replaced: Callable[..., object], make: Callable[..., Callable[..., object]]
    ) -> None:
        self.found, self.has_ended = found, False
        self._replaced, self._method = replaced, make(replaced)

    def __call__(self, *arguments: object, **named: object) -> object:
        return self._method(*arguments, **named)

    def end(self) -> None:
        """Call the original method from here on, for callers that still hold this replacement."""
        self._method, self.has_ended = self._replaced, True


def _as_found(attributes: Mapping[str, object], only_ended: bool = False) -> dict[str, object]:
    """Attributes of an object without replacements, or without those that have ended."""
    found = {}
    for name, value in attributes.items():
        own: object = value
        while isinstance(own, _Replacement) and (own.has_ended or not only_ended):
            own = own.found
        if own is not None or value is None:
            found[name] = own
    return found


def _without_replacements(owner: object) -> str | tuple[object, ...]:
    """Reduce an object for ``pickle`` and ``copy`` without replaced methods, which refer to a Trainer.

    A file that is read with ``weights_only`` cannot contain functions anyway.
    """
    reduced = owner.__reduce_ex__(2)
    if isinstance(reduced, str) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    return (*reduced[:2], _as_found(reduced[2]), *reduced[3:])
