# SPDX-License-Identifier: Apache-2.0
"""Loaders that may have different numbers of batches on different ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.collectives.async_max import AsyncMaxReduce


class EvenLoader:
    """Ends the epoch on all ranks when the first of them runs out of batches, so that no other waits in a collective.

    For streamed data of unknown length; a ``DistributedSampler`` gives all ranks the same number of steps. The ranks
    exchange whether each has a next batch during the current step.

    Args:
        loader: Loader of this rank; a ``DataLoader``, or any iterable that can be restarted for the next epoch.

    Attributes:
        cut_short: Number of epochs that ended while this rank had another batch.

    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self._votes: AsyncMaxReduce | None = None
        self.cut_short = 0

    def __iter__(self) -> Iterator[Any]:
        """Batches of this rank. Collective over all ranks."""
        if self._votes is None:
            self._votes = AsyncMaxReduce.of_all()
        votes = self._votes
        votes.wait()  # a pending vote, if the last epoch was left early on all ranks
        batches = iter(self._loader)
        batch = next(batches, _END)
        votes.start([batch is _END])
        while True:
            found = votes.wait()
            assert found is not None
            if found[0]:
                self.cut_short += batch is not _END
                break
            following = next(batches, _END)
            votes.start([following is _END])
            yield batch
            batch = following
        rank_zero_info("The epoch ends on all ranks, as one of them has no batches left.")


_END = object()
