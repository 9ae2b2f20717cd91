# SPDX-License-Identifier: Apache-2.0
"""The names of what a sharded checkpoint has in parts: weights, and the state of each optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, StateDict

T = TypeVar("T")

OPTIMIZER = "optimizer_"
"""Followed by the optimizer's number."""


def by_name(optimizers: Iterable[T]) -> dict[str, T]:
    """Optimizers, or their states, by the names that they have there."""
    return {f"{OPTIMIZER}{number}": one for number, one in enumerate(optimizers)}


def parts_of(checkpoint: Checkpoint) -> StateDict:
    """Take these parts out of a checkpoint that Lightning has collected."""
    return {"state_dict": checkpoint.pop("state_dict"), **by_name(checkpoint.pop("optimizer_states", []))}
