# SPDX-License-Identifier: Apache-2.0
"""Forms the next quorum after a loss and sends the training state to its new ranks, for the Trainer and for Fabric."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

import torch
import torch.distributed as dist

from lightning_sagemaker.recovery import wire
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.job_rank import JobRank
from lightning_sagemaker.recovery.transfer import receive, send
from lightning_sagemaker.recovery.wire import End, Reply

_log = logging.getLogger(__name__)

_NOTICE = 2.0
"""Seconds to wait for the notification of a loss after a collective has failed."""
_FAILED = ("gloo", "NCCL", "nccl", "Connection", "connection", "process group", "Broken pipe", "Socket", "socket")
"""Substrings of messages of a failed collective's RuntimeError. A store's errors have a class of their own instead."""


S = TypeVar("S")


class StateLost(RecoveryError):
    """No rank has the training state."""


class RanksChanged(RuntimeError):
    """A rank was lost, or has joined: training resumes from its last step with the current ranks."""


def is_loss(error: BaseException, rank: JobRank, step: int) -> bool:
    """Whether an error is from a collective that a rank did not join.

    Args:
        error: The exception.
        rank: This process as a rank of the job.
        step: The last committed step. If a connection was lost and no rank, all ranks repeat the next one.

    """
    if isinstance(error, RanksChanged):
        return True
    if not _is_of_collective(error):
        return False
    if not _has_changed(rank):  # a connection was lost, but no rank
        _log.warning(
            "rank %s: repeating a step, though no rank was lost: %s: %s", rank.number, type(error).__name__, error
        )
        rank.client.commit(step + 1, ok=False)
    return True


def _is_of_collective(error: BaseException) -> bool:
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _FAILED)


def _has_changed(rank: JobRank) -> bool:
    deadline = time.monotonic() + _NOTICE
    while not rank.client.changed and time.monotonic() < deadline:
        time.sleep(0.01)
    return rank.client.changed


def restart_after_losses(rank: JobRank) -> None:
    """Make this process exit with :data:`~.wire.RESTART` if it fails because others were lost, as before the first step.

    Args:
        rank: This process as a rank of the job.

    """
    if rank.follows:
        return
    rank.follows, hook = True, sys.excepthook

    def failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        hook(kind, error, trace)
        # Outside of the loops, ranks may change in the sanity check.
        if isinstance(error, (StateLost, RanksChanged)) or (_is_of_collective(error) and _has_changed(rank)):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(wire.RESTART)

    sys.excepthook = failed


@dataclass(frozen=True)
class Parts:
    """Sends shards of weights and optimizer states, which differ between the ranks of a replica.

    Attributes:
        size: Number of ranks of a replica.
        own: Returns this rank's shards.
        put: Takes over the shards of another replica's rank.

    """

    size: int
    own: Callable[[], Any]
    put: Callable[[Any], None]

    def sources(self, reply: Reply) -> dict[int, int | None]:
        """Rank that lacks its shards -> a rank that has the same ones; None if none is left."""
        order, holders = reply["order"], reply["holders"]
        found: dict[int, int | None] = {}
        for number, rank in enumerate(rank for rank in order if rank not in holders):
            same = [one for one in holders if one % self.size == rank % self.size]
            found[rank] = same[number // self.size % len(same)] if same else None
        return found


class Regroup(Generic[S]):
    """Forms the next quorum, and sends the training state to ranks that lack it.

    Args:
        rank: This process as a rank of the job.
        form: Creates the default group of a quorum, and updates the strategy's ranks. Collective over them.
        state: This rank's training state, which others may need.
        take_over: Takes over another rank's training state.
        leave: Called before this process exits because its host leaves the job.
        parts: State that only some ranks share, and that is not in ``state``.

    """

    def __init__(
        self,
        rank: JobRank,
        form: Callable[[Reply], None],
        state: Callable[[], S],
        take_over: Callable[[S], None],
        leave: Callable[[], None] = lambda: None,
        parts: Parts | None = None,
    ) -> None:
        self._rank, self._form, self._state, self._take_over, self._leave = rank, form, state, take_over, leave
        self._parts = parts

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
                if isinstance(error, RecoveryError) or not is_loss(error, self._rank, step()):
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
        order, sources = reply["order"], reply["sources"]
        parts = {} if self._parts is None else self._parts.sources(reply)
        if not sources or None in parts.values():
            raise StateLost(
                "All ranks, or all that have the same shards, were in the middle of a step when one was lost. HINT: start"
                " the job again; it resumes from its last checkpoint."
            )
        for rank, source in parts.items():
            assert self._parts is not None
            assert source is not None
            self._pass_on(order, source, rank, self._parts.own, self._parts.put, device)
        needy = [rank for rank in order if rank not in sources]
        for number, rank in enumerate(needy):
            self._pass_on(order, sources[number % len(sources)], rank, self._state, self._take_over, device)

    def _pass_on(
        self,
        order: list[int],
        source: int,
        rank: int,
        state: Callable[[], Any],
        take_over: Callable[[Any], None],
        device: torch.device,
    ) -> None:
        if self._rank.number == source:
            send(state(), order.index(rank))
        elif self._rank.number == rank:
            take_over(receive(order.index(source), device))


def end_of_job(end: End, world_size: int, path: object) -> RecoveryError:
    """The error of a job that cannot continue.

    Args:
        end: The reason, from the coordinator.
        world_size: Number of shards of the job.
        path: Path of the checkpoint that was written.

    """
    if collective := end.get("collective"):
        return RecoveryError(
            f"{end['left']} of {world_size} ranks are left, and a step of the script calls {collective}, which needs all of"
            f" them. Wrote {path}. HINT: start the job again; with AutoResume it resumes from there."
        )
    if end["why"] == "few":
        return RecoveryError(
            f"{end['left']} of {world_size} ranks are left, fewer than the minimum of {end['minimum']}. "
            f"Wrote {path}."
            f" HINT: start the job again; with AutoResume it resumes from there."
        )
    lost = ", ".join(f"rank {rank}" for rank in end["lost"])
    return RecoveryError(
        f"Step {end['step'] + 1} has failed {end['failures']} times; each time a rank was lost ({lost}). Wrote {path}."
        " HINT: look at the last log lines of these ranks, and at the batch of this step."
    )
