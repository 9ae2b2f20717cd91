# SPDX-License-Identifier: Apache-2.0
"""Range checks of the data modules' options."""

from __future__ import annotations

from lightning.fabric.utilities.exceptions import MisconfigurationException


def check_range(name: str, value: float | None, low: float, high: float) -> None:
    """Refuse a value of ``data.NAME`` outside of [``low``, ``high``]; ``None`` is not set.

    Raises:
        MisconfigurationException: If the value is out of range.

    """
    if value is not None and not low <= value <= high:
        raise MisconfigurationException(f"data.{name}={value} was set. HINT: it must be between {low:g} and {high:g}.")
