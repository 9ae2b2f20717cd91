# SPDX-License-Identifier: Apache-2.0
"""What the launcher raises for a user's mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LaunchError(ValueError):
    """A job that cannot be launched as described. Nothing has been uploaded or started."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The name in ``known`` that ``name`` was probably meant to be."""
    names = sorted(known)
    return (difflib.get_close_matches(name, names, n=1, cutoff=0.0) or names[:1] or [""])[0]


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """What a repeatable option ``NAME=VALUE`` was given.

    Raises:
        LaunchError: If a text is something else.

    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise LaunchError(f"{option} {text!r} was given. HINT: write {option} NAME=VALUE.")
        found[name] = value
    return found
