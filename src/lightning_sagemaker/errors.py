# SPDX-License-Identifier: Apache-2.0
"""What commands raise for a user's mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_FEW = 25
"""Names that fit into a message."""


class CommandError(ValueError):
    """What a command was given cannot be used. The command shows it and ends with exit code 2."""


class LaunchError(CommandError):
    """A job that cannot be launched as described. Nothing has been uploaded or started."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name in ``known`` that ``name`` was probably meant to be; None if none is near."""
    lower = {one.casefold(): one for one in sorted(known)}
    found = difflib.get_close_matches(name.casefold(), lower, n=1)
    return lower[found[0]] if found else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to write in place of ``name``: the nearest name, else the known ones if they are few."""
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"choose one of {', '.join(names)}." if len(names) <= _FEW else f"none of the {len(names)} known is similar."


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
        if name in found:
            raise LaunchError(f"{option} names {name!r} twice. HINT: give it once.")
        found[name] = value
    return found
