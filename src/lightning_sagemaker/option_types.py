# SPDX-License-Identifier: Apache-2.0
"""Types of the commands' options whose values have a range: a value outside it is refused before anything has started."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable


def integer(minimum: int) -> Callable[[str], int]:
    """The type of an integer of at least ``minimum``."""

    def parse(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = minimum - 1
        if found < minimum:
            raise ArgumentTypeError(f"{text!r} was given. HINT: it must be an integer of at least {minimum}.")
        return found

    return parse


def seconds(text: str) -> float:
    """The type of a time that must pass."""
    if not 0 < (found := _number(text)) < math.inf:
        raise ArgumentTypeError(f"{text!r} was given. HINT: it must be more than 0 seconds.")
    return found


def seconds_or_none(text: str) -> float:
    """The type of a time that may be 0."""
    if not 0 <= (found := _number(text)) < math.inf:
        raise ArgumentTypeError(f"{text!r} was given. HINT: it must be at least 0 seconds.")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
