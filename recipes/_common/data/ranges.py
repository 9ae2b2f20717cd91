# SPDX-License-Identifier: Apache-2.0
"""Numbers that are out of range are refused, by their option's name."""

from __future__ import annotations

from lightning.fabric.utilities.exceptions import MisconfigurationException


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number out of range.

    Raises:
        MisconfigurationException: If it is.

    """
    if not low <= value <= high:
        raise MisconfigurationException(f"data.{name}={value} was set. HINT: it must be between {low:g} and {high:g}.")
