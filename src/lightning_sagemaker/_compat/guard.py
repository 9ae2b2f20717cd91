# SPDX-License-Identifier: Apache-2.0
"""Private names of other libraries: an error where one is gone, instead of something that silently no longer happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class NameGone(ImportError):
    """A private name of another library, which this package needs, is not there in the installed version."""


def require(owner: Any, *names: str) -> None:
    """See that a class or module still has names.

    Raises:
        NameGone: If it lacks one.

    """
    for name in names:
        if not hasattr(owner, name):
            where = f"{getattr(owner, '__module__', '')}.{getattr(owner, '__qualname__', owner)}".strip(".")
            raise NameGone(
                f"{where} has no {name!r}, which this version of lightning-sagemaker builds on."
                " HINT: install the versions of lightning and torch that it was tested with, or a newer lightning-sagemaker."
            )


class TakenOver:
    """Methods of objects that are replaced for a while, and given back."""

    def __init__(self) -> None:
        self._taken: list[tuple[Any, str]] = []

    def take(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace a method by what ``make`` makes of it.

        Raises:
            NameGone: If there is no such method.

        """
        require(type(owner), name)
        vars(owner)[name] = make(getattr(owner, name))
        self._taken.append((owner, name))

    def give_back(self) -> None:
        """Leave the objects as they were found."""
        for owner, name in reversed(self._taken):
            vars(owner).pop(name, None)
        self._taken.clear()
