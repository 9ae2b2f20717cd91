# SPDX-License-Identifier: Apache-2.0
"""What all ranks agree on between batches: whether they stop, and whether they save a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_sagemaker.collectives.async_max import AsyncMaxReduce
from lightning_sagemaker.collectives.pace import Pace, exchange

_STOP, _SAVE = range(2)
"""Indices of the flags that ranks exchange."""


class StopVotes:
    """The ranks' flags, exchanged every few batches; a flag of one rank holds for all.

    Args:
        overhead: Fraction of a batch's time that exchanges may take.

    Attributes:
        stops: Whether all ranks stop.
        saves: Whether a checkpoint is due.
        training: When exchanges are due between batches of the training.
        evaluation: The same for an evaluation.

    """

    def __init__(self, overhead: float) -> None:
        self._reduce = AsyncMaxReduce()
        self.training, self.evaluation = Pace(overhead), Pace(overhead)
        self.stops = self.saves = False

    def connect(self) -> None:
        """Exchange with the other ranks from now on. Collective."""
        self._reduce = AsyncMaxReduce.of_all()

    def clock_spread(self) -> float:
        """The largest difference between two ranks' clocks, in seconds. Collective."""
        return self._reduce.clock_spread()

    def discard(self) -> None:
        """Drop a pending exchange, as the ranks have changed."""
        self._reduce.discard()

    def exchange(self, pace: Pace, count: int, flags: Sequence[float]) -> list[float]:
        """Exchange flags, which is due. Collective.

        Args:
            pace: :attr:`training` or :attr:`evaluation`.
            count: Batches so far.
            flags: Flags of this rank: whether to stop, whether to save, and any others.

        Returns:
            The maximum of each flag, of this exchange or of the previous one.

        """
        known = exchange(self._reduce, pace, count, flags)
        self.take(known)
        return known

    def settle(self) -> None:
        """Wait for a pending exchange, as ranks do something else next."""
        self.take(self._reduce.wait())

    def take(self, flags: Sequence[float] | None) -> None:
        """Take over flags that all ranks have exchanged."""
        if flags is not None and len(flags) > _SAVE:
            self.stops, self.saves = self.stops or bool(flags[_STOP]), self.saves or bool(flags[_SAVE])

    def maximum(self, values: Sequence[float]) -> list[float]:
        """The maximum of each value, while no exchange is pending. Collective, and waits for all."""
        self._reduce.start(values)
        found = self._reduce.wait()
        assert found is not None
        return found
