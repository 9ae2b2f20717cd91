# SPDX-License-Identifier: Apache-2.0
"""Hooks that a script registers at the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

_KEYS = itertools.count()


class Handle:
    """What registering a hook returns.

    Args:
        hooks: Where the hook is kept until it is called or removed.
        hook: To keep.

    """

    def __init__(self, hooks: dict[int, Callable[..., Any]], hook: Callable[..., Any]) -> None:
        self._hooks = hooks
        self._key = next(_KEYS)  # not id(self): scripts seldom keep the handle, and the next one may get its id
        hooks[self._key] = hook

    def remove(self) -> None:
        """Forget the hook."""
        self._hooks.pop(self._key, None)
