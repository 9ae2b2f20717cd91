# SPDX-License-Identifier: Apache-2.0
"""Parts of a loader's position, as plain containers, which a checkpoint may hold."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from lightning_sagemaker.data.batches import Rest
from lightning_sagemaker.data.captured import Captured


def read(states: dict[int, bytes]) -> dict[str, Captured]:
    """Of workers, as a checkpoint may hold them."""
    return {str(worker): pickle.loads(state) for worker, state in states.items()}


def written(states: dict[str, Captured]) -> dict[int, bytes]:
    """As workers take them."""
    return {int(worker): pickle.dumps(state) for worker, state in states.items()}


def written_rest(batches: Sequence[Any]) -> dict[str, Any]:
    """What is left of an epoch: where it begins, if that is enough, else all of it."""
    return {"place": list(batches.place)} if isinstance(batches, Rest) else {"batches": batches}


def read_rest(dealt: dict[str, Any], sampler: Any) -> Sequence[Any]:
    """Batches that are left of an epoch that was dealt out anew."""
    found: Sequence[Any] = sampler.remaining(*dealt["place"]) if "place" in dealt else dealt["batches"]
    return found
