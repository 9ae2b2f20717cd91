# SPDX-License-Identifier: Apache-2.0
"""Callbacks that are written and copied as when they were made: scripts have them among a module's hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps


class AsMade:
    """Mixed into a callback: a copy has its arguments, and nothing of a fit: no Trainer, threads or signal handlers."""

    _made_with: tuple[tuple[object, ...], dict[str, object]] | None = None

    def __init_subclass__(cls) -> None:
        """Note the arguments of the outermost ``__init__``, of subclasses of the script's own too."""
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = _noting(cls.__init__)  # type: ignore[method-assign]

    def __getstate__(self) -> object:
        """The arguments."""
        return self._made_with

    def __setstate__(self, state: tuple[tuple[object, ...], dict[str, object]]) -> None:
        """Make it again."""
        arguments, named = state
        make: Callable[..., None] = type(self).__init__
        make(self, *arguments, **named)


def _noting(make: Callable[..., None]) -> Callable[..., None]:
    @wraps(make)
    def noting(self: AsMade, *arguments: object, **named: object) -> None:
        self._made_with = self._made_with or (arguments, named)
        make(self, *arguments, **named)

    return noting
