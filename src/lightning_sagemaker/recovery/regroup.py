# SPDX-License-Identifier: Apache-2.0
"""Forms the next quorum after a loss and sends the training state to its new ranks, for the Trainer and for Fabric."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import torch

from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.job_rank import JobRank
from lightning_sagemaker.recovery.rank_loss import StateLost, is_rank_loss
from lightning_sagemaker.recovery.transfer import receive, send
from lightning_sagemaker.recovery.wire import End, Reply

S = TypeVar("S")


@dataclass(frozen=True)
class Transfer(Generic[S]):
    """State that a rank which lacks it receives from another rank's memory.

    Attributes:
        own: Returns this rank's state.
        take_over: Takes over another rank's state.
        replica_size: Number of consecutive ranks whose states differ, as with shards; 1 if all ranks have the same state.

    """

    own: Callable[[], S]
    take_over: Callable[[S], None]
    replica_size: int = 1

    def sources(self, order: Sequence[int], holders: Sequence[int]) -> dict[int, int | None]:
        """Rank that lacks the state -> a rank that has the same one; None if none is left.

        Args:
            order: Ranks of the quorum.
            holders: Those that have their state.

        """
        size, found = self.replica_size, dict[int, int | None]()
        for number, rank in enumerate(rank for rank in order if rank not in holders):
            same = [one for one in holders if one % size == rank % size]
            found[rank] = same[number // size % len(same)] if same else None
        return found


class Regroup(Generic[S]):
    """Forms the next quorum, and sends the training state to ranks that lack it.

    Args:
        rank: This process as a rank of the job.
        form: Creates the default group of a quorum, and updates the strategy's ranks. Collective over them.
        state: Training state that is the same on all ranks.
        shards: State that differs within a replica, and that is not in ``state``.
        leave: Called before this process exits because its host leaves the job.

    """

    def __init__(
        self,
        rank: JobRank,
        form: Callable[[Reply], None],
        state: Transfer[S],
        shards: Transfer[Any] | None = None,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self._rank, self._form, self._state, self._shards, self._leave = rank, form, state, shards, leave

    def __call__(
        self, at: Callable[[], list[int] | None], step: Callable[[], int], device: torch.device, *, admits: bool = True
    ) -> End | None:
        """Form the next quorum. Collective over the remaining ranks and replacements that have arrived.

        Args:
            at: This rank's training position; None if it has no state.
            step: The last committed step.
            device: Device for received tensors that are on an accelerator at their source.
            admits: Whether replacements join and receive the state. Within an evaluation they wait.

        Returns:
            Why the job cannot continue; None if it can.

        Raises:
            SystemExit: If training is over.
            RecoveryError: If no rank has the state.

        """
        while True:
            reply = self._rank.client.next_quorum(at(), admits)
            if reply["kind"] == "over":
                raise SystemExit(reply["code"])
            if reply["kind"] == "leave":
                self._exit()
            if reply["kind"] == "alone":
                raise StateLost(
                    "No remaining rank has the training state. HINT: start the job again; it resumes from its last "
                    "checkpoint."
                )
            try:
                self._form(reply)
                if admits:
                    self._share(reply, device)
            except RuntimeError as error:
                if isinstance(error, RecoveryError) or not is_rank_loss(error, self._rank, step()):
                    raise
            else:
                return reply["end"]

    def _exit(self) -> NoReturn:
        """Exit this process, whose host leaves the job, without any collective."""
        self._leave()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _share(self, reply: Reply, device: torch.device) -> None:
        """Send the state to ranks that lack it. Collective."""
        order = reply["order"]
        sources = self._state.sources(order, reply["sources"])
        of_shards = {} if self._shards is None else self._shards.sources(order, reply["holders"])
        if None in sources.values() or None in of_shards.values():
            raise StateLost(
                "All ranks, or all that have the same shards, were in the middle of a step when one was lost. HINT: start"
                " the job again; it resumes from its last checkpoint."
            )
        if self._shards is not None:
            self._pass_on(self._shards, of_shards, order, device)
        self._pass_on(self._state, sources, order, device)

    def _pass_on(
        self, state: Transfer[Any], sources: dict[int, int | None], order: Sequence[int], device: torch.device
    ) -> None:
        for rank, source in sources.items():
            assert source is not None
            if self._rank.number == source:
                send(state.own(), order.index(rank))
            elif self._rank.number == rank:
                state.take_over(receive(order.index(source), device))
