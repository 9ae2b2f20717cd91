# SPDX-License-Identifier: Apache-2.0
"""What a fit draws its random numbers from, and when it has drawn those that a resumed run draws again."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lightning_sagemaker._compat.reloads import Requests
from lightning_sagemaker.checkpoint.random_state import RandomState, random_state, restore_random_state

if TYPE_CHECKING:
    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import Trainer


class FitRandom:
    """The random number generators of a fit.

    Args:
        trainer: Of whose fit.
        events: Events of the fit.

    """

    def __init__(self, trainer: Trainer, events: LoopEvents) -> None:
        Requests(trainer, events, self.take, lambda state: self.put(cast("RandomState", state)))

    def take(self) -> RandomState:
        """Their states."""
        return random_state()

    def put(self, state: RandomState) -> None:
        """Restore :meth:`take`."""
        restore_random_state(state)
