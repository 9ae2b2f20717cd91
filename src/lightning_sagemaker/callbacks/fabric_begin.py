# SPDX-License-Identifier: Apache-2.0
"""What an epoch of a custom loop begins with: a resumed run repeats the epoch's first code with it.

This code may draw the epoch's samples, or build its loader from a value in ``state`` that it has changed.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from lightning_sagemaker.callbacks.fabric_values import (
    group_settings,
    loop_generators,
    put_group_settings,
    restore_loop_generators,
)
from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state

if TYPE_CHECKING:
    from lightning_sagemaker._types import Fabric, StateDict
    from lightning_sagemaker.callbacks.fabric_data import LoopData
    from lightning_sagemaker.callbacks.fabric_entries import BeginEntry, BeginRankEntry, LoopEntry


class EpochBegin:
    """The beginning of the current epoch.

    Args:
        state: The user's objects.
        data: Converts them.

    Attributes:
        entry: For a checkpoint: values; None before the first epoch.
        own: For a checkpoint: this rank's random states and generators.

    """

    def __init__(self, state: StateDict, data: LoopData) -> None:
        self._state, self._data = state, data
        self.entry: BeginEntry | None = None
        self.own: BeginRankEntry | None = None

    def begin(self, loaded: LoopEntry | None, fabric: Fabric) -> None:
        """Record what an epoch begins with, or restore it.

        Args:
            loaded: The entry of the checkpoint, if this epoch is resumed within.
            fabric: Fabric.

        """
        values, others = self._data.small()
        self.entry = {"values": values, "others": others, "groups": group_settings(self._state)}
        self.own = {"random": random_state(), "generators": loop_generators(self._state)}
        if loaded is None:
            return
        if len(loaded["ranks"]) == fabric.world_size and (own := loaded["ranks"][fabric.global_rank].get("begin")):
            self.own = own
            restore_loop_generators(self._state, [own["generators"]], 0)
            restore_random_state(own["random"])
        if (entry := loaded.get("begin")) is not None:  # files of earlier versions have none
            self.entry = entry
            self._data.put(copy.deepcopy(entry["values"]), entry["others"], fabric.device)
            put_group_settings(self._state, entry["groups"])


def is_within(loaded: LoopEntry | None) -> bool:
    """Whether a checkpoint was saved within an epoch, after some of its batches."""
    return loaded is not None and bool(loaded["batch"] or loaded.get("passed"))
