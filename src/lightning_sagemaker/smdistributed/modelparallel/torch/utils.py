# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.utils``."""

from __future__ import annotations

from lightning_sagemaker.smdistributed.modelparallel.torch.core import rank


def get_distribution_axis(parameter: object) -> int | None:
    """Axis along which tensor parallelism shards a matrix; always None here."""
    return None


def rmsg(message: str) -> str:
    """``message`` with the rank before it."""
    return f"[{rank()}] {message}"
