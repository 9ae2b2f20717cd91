# SPDX-License-Identifier: Apache-2.0
"""A loader at the end of an epoch, where a checkpoint was saved: its next iteration is that of the next epoch."""

from __future__ import annotations

from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state
from lightning_sagemaker.data.position import Position, Watch, has_state
from lightning_sagemaker.data.starting import take_end
from lightning_sagemaker.data.tracked import catch_up


def pass_end(watched: Watch, position: Position) -> None:
    """Move a loader to an epoch's end; the next iteration is of the next epoch."""
    outer = random_state()
    if position["own"] is not None and has_state(watched.loader):
        kind = getattr(watched.loader, "_kind", type(watched.loader))
        watched.loader.load_state_dict(position["own"])
        take_end(watched, position, lambda: kind.__iter__(watched.loader))
    elif watched.is_persistent:
        catch_up(watched, position)
    watched.capture.put_objects(position["now"])
    restore_random_state(outer)
    watched.passed = position
