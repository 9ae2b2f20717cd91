# SPDX-License-Identifier: Apache-2.0
"""The loops over batches that an epoch of a custom loop has behind it: a resumed run does not enter them again.

An epoch may have several of them (one for each network or loader), and a script may leave one by ``break``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from lightning_sagemaker.callbacks.fabric_entries import LoopEntry
    from lightning_sagemaker.data.position import Position


class PassedLoop(TypedDict):
    """Iterations of Fabric's loader before this one, number of batches, and the loader's position after them."""

    calls: int
    batch: int
    position: Position | None


class PassedLoops:
    """Those of the current epoch."""

    def __init__(self) -> None:
        self._before: list[PassedLoop] = []
        self._last: PassedLoop | None = None
        self._is_left = False

    def begin(self) -> None:
        """The script begins another loop, so that the last one is over."""
        if self._last is not None:
            self._before.append(self._last)
        self._last, self._is_left = None, False

    def end(self, calls: int, batch: int, position: Position | None, is_left: bool) -> None:
        """A loop has given its last batch, or was left."""
        self._last, self._is_left = {"calls": calls, "batch": batch, "position": position}, is_left

    def of_checkpoint(self) -> tuple[list[PassedLoop], bool]:
        """Those that a resumed run skips, and whether the last was left.

        One that an exception has ended, which is being handled, is to go on.
        """
        if self._last is None or not self._is_left or sys.exc_info()[0] is not None:
            return list(self._before), False
        return [*self._before, self._last], True

    def is_next_in(self, loaded: LoopEntry) -> bool:
        """Whether the checkpoint has the next loop as one that is over."""
        return len(self._before) + (self._last is not None) < len(loaded.get("passed", ()))

    def skip(self, loaded: LoopEntry, rank: int | None) -> tuple[int, int, Position | None]:
        """Count the next loop as one that is over.

        Args:
            loaded: The entry of the checkpoint.
            rank: The rank whose position is wanted; None on another number of ranks.

        Returns:
            Iterations of its loader before it, number of its batches, and position after them.

        """
        number = len(self._before)
        calls, batch = loaded["passed"][number]
        position = None if rank is None else loaded["ranks"][rank]["passed"][number]
        self.end(calls, batch, position, loaded["left"] and number + 1 == len(loaded["passed"]))
        return calls, batch, position
