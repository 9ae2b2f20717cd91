# SPDX-License-Identifier: Apache-2.0
"""Callbacks that are pickled and copied by their arguments, as scripts store them in a module's hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps


class CopiedByArguments:
    """Mixin of a callback: a copy has its arguments, and no state of a fit, such as Trainer, threads or signal handlers."""

    _init_arguments: tuple[tuple[object, ...], dict[str, object]] | None = None

    def __init_subclass__(cls) -> None:
        """Record the arguments of the outermost ``__init__``, also of a script's subclasses."""
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = _noting(cls.__init__)  # type: ignore[method-assign]

    def __getstate__(self) -> object:
        """The arguments."""
        return self._init_arguments

    def __setstate__(self, state: tuple[tuple[object, ...], dict[str, object]]) -> None:
        """Initialize the copy with the arguments."""
        arguments, named = state
        make: Callable[..., None] = type(self).__init__
        make(self, *arguments, **named)


def _noting(make: Callable[..., None]) -> Callable[..., None]:
    @wraps(make)
    def noting(self: CopiedByArguments, *arguments: object, **named: object) -> None:
        self._init_arguments = self._init_arguments or (arguments, named)
        make(self, *arguments, **named)

    return noting
