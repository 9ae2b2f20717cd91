# SPDX-License-Identifier: Apache-2.0
"""How often each step has failed, and which ranks were lost in it: a step that fails again and again ends the job."""

from __future__ import annotations

from collections import Counter, defaultdict

from lightning_sagemaker.recovery import wire


class Failures:
    """Failures by step.

    Which step has failed is known when those that are left have said where they are: after all have resumed from a
    checkpoint, it is an earlier one than the job had reached.
    """

    def __init__(self) -> None:
        self._times, self._lost = Counter[int](), defaultdict[int, list[int]](list)
        self._fails, self._lost_now = False, list[int]()

    def lose(self, rank: int) -> None:
        """A rank is lost in the step in flight."""
        self._lost_now.append(rank)

    def discard(self, *, fails: bool) -> None:
        """The step in flight is discarded; ``fails`` says whether that counts."""
        self._fails = fails

    def of(self, step: int) -> tuple[int, list[int]]:
        """How often what follows a step has failed, now included, and the ranks that were lost."""
        return self._times[step] + self._fails, [*self._lost[step], *self._lost_now]

    def too_many(self, step: int, attempts: int) -> wire.End | None:
        """Why the job ends, if what follows a step has failed so often.

        Args:
            step: After which it failed.
            attempts: How often it may fail.

        """
        failures, lost = self.of(step)
        return {"why": "stuck", "step": step, "failures": failures, "lost": lost} if failures >= attempts else None

    def settle(self, step: int | None) -> None:
        """The next quorum begins.

        Args:
            step: After which it failed; None if all ranks start again, which has a limit of its own.

        """
        if step is not None:
            self._times[step], self._lost[step] = self.of(step)
        self._fails, self._lost_now = False, []
