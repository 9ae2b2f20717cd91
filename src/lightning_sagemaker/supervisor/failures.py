# SPDX-License-Identifier: Apache-2.0
"""Counts failures by step, with the ranks that were lost: a step that fails repeatedly ends the job."""

from __future__ import annotations

from collections import Counter, defaultdict

from lightning_sagemaker.recovery import wire


class Failures:
    """Failures by step.

    Which step has failed is known once the remaining ranks have sent their positions: after all have resumed from a
    checkpoint, it is before the step that the job had reached.
    """

    def __init__(self) -> None:
        self._times, self._lost = Counter[int](), defaultdict[int, list[int]](list)
        self._fails, self._lost_now = False, list[int]()

    def lose(self, rank: int) -> None:
        """Record that a rank was lost in the step in flight."""
        self._lost_now.append(rank)

    def discard(self, *, fails: bool) -> None:
        """Discard the step in flight; ``fails`` is whether this counts as a failure."""
        self._fails = fails

    def of(self, step: int) -> tuple[int, list[int]]:
        """Number of failures of the step after ``step``, including the current one, and the ranks that were lost."""
        return self._times[step] + self._fails, [*self._lost[step], *self._lost_now]

    def too_many(self, step: int, attempts: int) -> wire.End | None:
        """Why the job ends, if the step after ``step`` has failed ``attempts`` times; else None.

        Args:
            step: Last committed step.
            attempts: Maximum number of failures.

        """
        failures, lost = self.of(step)
        return {"why": "stuck", "step": step, "failures": failures, "lost": lost} if failures >= attempts else None

    def settle(self, step: int | None) -> None:
        """Record the failure at the start of the next quorum.

        Args:
            step: Last committed step; None if all ranks restart, which has a limit of its own.

        """
        if step is not None:
            self._times[step], self._lost[step] = self.of(step)
        self._fails, self._lost_now = False, []
