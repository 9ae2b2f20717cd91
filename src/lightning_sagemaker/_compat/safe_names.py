# SPDX-License-Identifier: Apache-2.0
"""What torch reads from a file that is read as data."""

from __future__ import annotations

from typing import Any

from torch import _weights_only_unpickler

from lightning_sagemaker._compat.guard import require

require(_weights_only_unpickler, "_get_allowed_globals")


def safe_names() -> dict[str, Any]:
    """Classes and functions by the name that stands in the file."""
    found: dict[str, Any] = _weights_only_unpickler._get_allowed_globals()
    return found
