# SPDX-License-Identifier: Apache-2.0
"""Logs committed steps as events: the first of each quorum, and others periodically."""

from __future__ import annotations

import time
from collections.abc import Callable

_SECONDS = 10.0
"""Minimum seconds between two events."""


class StepNotes:
    """Records the committed steps of one job.

    Args:
        note: Called with the name of an event and its values.

    Attributes:
        is_first: Whether the next step is the first of its quorum.
        last: Time of the last committed step, by ``time.time``.

    """

    def __init__(self, note: Callable[..., None]) -> None:
        self._note, self._noted = note, 0.0
        self.is_first, self.last = False, time.time()

    def counted(self, step: int, ranks: int) -> None:
        """Record a committed step.

        Args:
            step: Number of the step.
            ranks: Number of its ranks.

        """
        self.last = time.time()
        if self.is_first or self.last - self._noted > _SECONDS:
            self._note("resumed" if self.is_first else "steps", step=step, ranks=ranks)
            self.is_first, self._noted = False, self.last
