# SPDX-License-Identifier: Apache-2.0
"""Loaders of evaluations: each starts from the beginning, with random states and counters continued from the last."""

from __future__ import annotations

from collections.abc import Collection

from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state
from lightning_sagemaker.data.position import Position, Watch
from lightning_sagemaker.data.tracked import catch_up


def before_evaluation(watched: Watch) -> Position:
    """The state that the next evaluation with a loader depends on."""
    position = watched.position(0) if watched.is_persistent else None
    return position or {"now": watched.capture.take_objects()}


def put_before_evaluation(watched: Watch, position: Position, but: Collection[int]) -> None:
    """Restore :func:`before_evaluation`, except for generators of the ids ``but``."""
    outer = random_state()
    if "birth" in position and watched.is_persistent and watched.loader._iterator is None:
        catch_up(watched, position)
    watched.capture.put_objects(position["now"], but)
    restore_random_state(outer)
