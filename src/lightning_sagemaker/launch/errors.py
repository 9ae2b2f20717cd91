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
