# SPDX-License-Identifier: Apache-2.0
"""Converts parts of a loader's position to plain containers for a checkpoint, and back."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from lightning_sagemaker.data.batches import Rest
from lightning_sagemaker.data.captured import Captured


def read(states: dict[int, bytes]) -> dict[str, Captured]:
    """Convert workers' states to a checkpoint's format."""
    return {str(worker): pickle.loads(state) for worker, state in states.items()}


def written(states: dict[str, Captured]) -> dict[int, bytes]:
    """Convert workers' states from a checkpoint's format."""
    return {int(worker): pickle.dumps(state) for worker, state in states.items()}


def written_rest(batches: Sequence[Any]) -> dict[str, Any]:
    """The rest of an epoch: its start, if that is enough, else all of it."""
    return {"place": list(batches.place)} if isinstance(batches, Rest) else {"batches": batches}


def read_rest(dealt: dict[str, Any], sampler: Any) -> Sequence[Any]:
    """The remaining batches of an epoch that was redistributed."""
    found: Sequence[Any] = sampler.remaining(*dealt["place"]) if "place" in dealt else dealt["batches"]
    return found
