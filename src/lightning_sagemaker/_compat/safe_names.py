# SPDX-License-Identifier: Apache-2.0
"""The names that torch accepts in a file that it loads with ``weights_only``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import _weights_only_unpickler

from lightning_sagemaker._compat.guard import require

if TYPE_CHECKING:
    from lightning_sagemaker._types import StateDict


require(_weights_only_unpickler, "_get_allowed_globals")


def safe_names() -> StateDict:
    """Name in the file -> class or function."""
    found: StateDict = _weights_only_unpickler._get_allowed_globals()
    return found
