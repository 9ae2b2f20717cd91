# SPDX-License-Identifier: Apache-2.0
"""Names of the sharded entries of a checkpoint: weights, and the state of each optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, StateDict

T = TypeVar("T")

OPTIMIZER = "optimizer_"
"""Prefix of an optimizer's name, followed by its index."""


def by_name(optimizers: Iterable[T]) -> dict[str, T]:
    """Optimizers, or their states, by their names in the checkpoint."""
    return {f"{OPTIMIZER}{number}": one for number, one in enumerate(optimizers)}


def pop_sharded_entries(checkpoint: Checkpoint) -> StateDict:
    """Remove the sharded entries from a checkpoint that Lightning has collected, and return them."""
    return {"state_dict": checkpoint.pop("state_dict"), **by_name(checkpoint.pop("optimizer_states", []))}
