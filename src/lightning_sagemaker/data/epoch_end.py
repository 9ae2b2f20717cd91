# SPDX-License-Identifier: Apache-2.0
"""A loader at the end of an epoch, where a checkpoint was saved: its next iteration is that of the next epoch."""

from __future__ import annotations

from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state
from lightning_sagemaker.data.position import Position, Watch, has_state
from lightning_sagemaker.data.run_late import begin_after_last
from lightning_sagemaker.data.tracked import catch_up


def pass_end(watched: Watch, position: Position) -> None:
    """Move a loader to an epoch's end; the next iteration is of the next epoch."""
    outer = random_state()
    if position["own"] is not None and has_state(watched.loader):
        watched.loader.load_state_dict(position["own"])
        if not position.get("ended", True):  # Lightning stops before the end of a loader whose length it knows
            rest = getattr(watched.loader, "_kind", type(watched.loader)).__iter__(watched.loader)
            begin_after_last(watched, rest, position)
    elif watched.is_persistent:
        catch_up(watched, position)
    watched.capture.put_objects(position["now"])
    restore_random_state(outer)
    watched.pass_end(position)
