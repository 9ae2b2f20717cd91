# SPDX-License-Identifier: Apache-2.0
"""Hooks that a script registers at the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Handle:
    """What registering a hook returns.

    Args:
        hooks: Where the hook is kept until it is called or removed.
        hook: To keep.

    """

    def __init__(self, hooks: dict[int, Callable[..., Any]], hook: Callable[..., Any]) -> None:
        self._hooks = hooks
        hooks[id(self)] = hook

    def remove(self) -> None:
        """Forget the hook."""
        self._hooks.pop(id(self), None)
