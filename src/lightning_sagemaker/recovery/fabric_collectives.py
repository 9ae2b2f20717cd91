# SPDX-License-Identifier: Apache-2.0
"""Collectives in a custom loop with Fabric, which the remaining ranks repeat if one is lost.

Only the adopting rank runs a pass through the loop's body for a lost rank's batch, so a collective in it has no
counterpart on other ranks; and a result over the remaining ranks is not the one over all shards. A body that calls a
collective therefore needs all ranks: while one is missing the others wait for its replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from lightning_sagemaker._compat.default_group import alone_in_default_group
from lightning_sagemaker._lightning import rank_zero_warn
from lightning_sagemaker.recovery.rank_loss import is_rank_loss

if TYPE_CHECKING:
    from lightning_sagemaker.recovery.fabric_loop import InJobLoop
    from lightning_sagemaker.recovery.fabric_steps import InJobStrategy
    from lightning_sagemaker.recovery.job_rank import JobRank

R = TypeVar("R")

_WITHOUT_ITS_PART = (
    "A rank was lost at a collective of the script, which is repeated without its part. HINT: put an evaluation and the"
    " collectives on its result into a function, and call loop.collective(function): it is repeated as a whole."
)


class FabricCollectives:
    """The collectives of one loop.

    Args:
        loop: The loop.
        rank: This process as a rank of the job.
        strategy: A strategy that recovers in the job.

    Attributes:
        is_within: Whether a collective runs; collectives that it calls are part of it.

    """

    def __init__(self, loop: InJobLoop, rank: JobRank, strategy: InJobStrategy) -> None:
        self._loop, self._rank, self._strategy = loop, rank, strategy
        self.is_within = self._has_warned = self._is_apart = False
        self._apart = ExitStack()

    def of_script(
        self,
        operation: Callable[[], R],
        alone: Callable[[], R],
        *,
        name: str = "",
        warning: str | None = _WITHOUT_ITS_PART,
    ) -> R:
        """Run a collective of the script; the remaining ranks repeat it if one is lost.

        Args:
            operation: The collective; it must be repeatable.
            alone: Replaces it in the pass of a lost rank's batch, and in a replacement that is about to join.
            name: Name of the collective, if its result depends on all shards.
            warning: Log message for a repetition.

        """
        loop, steps = self._loop, self._loop.steps
        if self.is_within:
            return operation()
        loop.check_left()
        if name and loop.within and not steps.fails and not steps.stepped and self._is_missing_one:
            self._wait_for_all(name)
        if loop.joins or loop.discarded:
            return alone()
        if not loop.within or steps.stepped:
            if name and loop.within and self._is_missing_one and not self._has_warned:
                self._has_warned = True
                rank_zero_warn(
                    f"{name}, called after a step, is over the {len(self._rank.order)} of {self._strategy.shards} ranks that"
                    " are left. HINT: call it in each pass, before optimizer.step, to have it wait for all."
                )
            return self.until_done(operation, warning)
        with self.running():  # if a rank is lost the whole step is repeated
            try:
                result, ok = operation(), self.is_whole
            except RuntimeError as error:
                if not is_rank_loss(error, self._rank, loop.step):
                    raise
                result, ok = alone(), False
        steps.fails = not self.vote(ok)
        if steps.fails:
            self.stay_apart()
        return result

    def until_done(self, operation: Callable[[], R], warning: str | None = None) -> R:
        """Repeat a collective operation until it has succeeded on all present ranks."""
        while True:
            try:
                with self.running():
                    result = operation()
                    ok = self.is_whole
            except RuntimeError as error:
                if not is_rank_loss(error, self._rank, self._loop.step):
                    raise
                ok = False
            if self.vote(ok):
                return result
            self._loop.regroup(admits=False)
            if warning is not None:
                rank_zero_warn(warning)

    def vote(self, ok: bool) -> bool:
        """Whether ``ok`` is true on all present ranks. Collective."""
        return bool(self._rank.client.commit(self._loop.step, ok=ok)["commit"])

    @property
    def is_whole(self) -> bool:
        """Whether no rank was lost and no collective has failed. Collective."""
        return self._rank.is_whole(self._strategy.root_device)

    @contextmanager
    def one_pass(self, adopts: bool) -> Iterator[None]:
        """Context for a pass through the loop's body.

        Args:
            adopts: Whether the pass is for a lost rank's batch.

        """
        with self._apart:
            if adopts:
                self.stay_apart()
            yield

    def stay_apart(self) -> None:
        """Make collectives of ``torch.distributed`` local for the rest of this pass, which is discarded."""
        if not self._is_apart:
            self._apart.enter_context(self._alone())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._is_apart = True
        try:
            with alone_in_default_group(self._wait_for_all):
                yield
        finally:
            self._is_apart = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context for a collective of the loop itself."""
        self.is_within = True
        try:
            yield
        finally:
            self.is_within = False

    @property
    def _is_missing_one(self) -> bool:
        return len(self._rank.order) < self._strategy.shards

    def _wait_for_all(self, name: str) -> None:
        """Discard the step in flight, and wait until later steps have all ranks."""
        if not self._loop.steps.fails:
            self._loop.steps.fails = True
            self._rank.client.wait_for_all(name)
