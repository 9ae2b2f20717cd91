# SPDX-License-Identifier: Apache-2.0
"""The coordinator's state of a job, and of each of its ranks."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lightning_sagemaker.recovery import wire
from lightning_sagemaker.recovery.protocol_log import log
from lightning_sagemaker.recovery.replica_ranks import complete


@dataclass
class Settings:
    """A job's requirements for quorums.

    Attributes:
        world_size: Number of ranks of the job, and of shards of its data.
        minimum: Minimum number of ranks to continue.
        rejoin_timeout: Seconds to wait for a replacement before the others continue without it.
        silence: Seconds without a heartbeat after which a rank is lost.
        attempts: Maximum number of failures of the same step.
        patience: Seconds to wait for the minimum number of ranks.
        to_begin: Number of ranks to start training with; the others join later. None for all.
        collective: Name of a collective that a step of the script calls, which needs all ranks; empty if none is known.

    """

    world_size: int
    minimum: int = 1
    rejoin_timeout: float = 0.0
    silence: float = 5.0
    attempts: int = 3
    patience: float = 60.0
    to_begin: int | None = None
    collective: str = ""

    def need_all(self, collective: str, report: Callable[[str], None]) -> None:
        """Require all ranks: because of a collective, no rank can train on the shard of a missing one."""
        if not self.collective:
            report(
                f"a step of the script calls {collective}, which needs all {self.world_size} ranks: while one is missing"
                " the others wait for its replacement."
            )
        self.collective, self.minimum = collective, self.world_size

    def too_few(self, left: int) -> wire.End:
        """The reason for the job's end if only ``left`` ranks are left."""
        return {"why": "few", "left": left, "minimum": self.minimum, "collective": self.collective}

    def patience_of(self, present: int) -> float:
        """Seconds that ``present`` ranks wait for replacements of the others."""
        return max(self.rejoin_timeout, self.patience if present < self.minimum else 0.0)

    @property
    def fewest(self) -> int:
        """Number of ranks to start training with."""
        return self.to_begin or self.world_size


@dataclass
class RankRecord:
    """The coordinator's state of one rank's process, for the duration of its connection.

    Attributes:
        rank: Global rank.
        connection: Connection to the process.
        info: Information for the other ranks.
        last_heartbeat: Time of its last message.
        joined: Number of its first quorum.
        request: The pending request: a start, a quorum or a restart. A rank has one request at a time; the ids of
            votes are kept in the coordinator.
        request_id: Id of the pending request.
        sending: Lock for sending.

    """

    rank: int
    connection: socket.socket
    info: wire.Info
    last_heartbeat: float
    joined: int | None = None
    request: wire.Start | wire.NextQuorum | wire.LeaveForRestart | None = None
    request_id: int = 0
    sending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_starting(self) -> bool:
        """Whether it waits for the first quorum, or to join."""
        return isinstance(self.request, wire.Start)

    @property
    def asks_quorum(self) -> bool:
        """Whether it waits for a later quorum."""
        return isinstance(self.request, wire.NextQuorum)

    @property
    def at(self) -> list[int] | None:
        """The training position in its request for a quorum; None if it has no state."""
        return self.request.at if isinstance(self.request, wire.NextQuorum) else None

    @property
    def admits(self) -> bool:
        """Whether the quorum that it requests may contain replacements."""
        return not isinstance(self.request, wire.NextQuorum) or self.request.admits

    @property
    def leaves_for_restart(self) -> bool:
        """Whether its script cannot recover in the job."""
        return isinstance(self.request, wire.LeaveForRestart)

    def answer(self, reply: wire.Reply) -> None:
        """Respond to the pending request."""
        self.request = None
        self.send({**reply, "id": self.request_id})

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message; a lost connection is detected elsewhere."""
        with self.sending, contextlib.suppress(OSError):
            wire.send(self.connection, message)


def quorum_of(records: Sequence[RankRecord]) -> wire.Reply:
    """The description of a quorum that its ranks receive.

    Args:
        records: Records in the order of the quorum.

    """
    newest = max((record.at for record in records if record.at is not None), default=None)
    has = [record for record in records if newest and record.at and record.at[0] == newest[0]]
    return {
        "order": [record.rank for record in records],
        "sources": [record.rank for record in has if record.at == newest],
        "holders": [record.rank for record in has],
        "infos": [record.info for record in records],
    }


def join_of(mates: Sequence[RankRecord], records: Mapping[int, RankRecord], active: Sequence[int]) -> wire.Reply:
    """The response to a rank that is to join others.

    Args:
        mates: Records of the ranks that join together with it.
        records: Rank -> record, of all connected ranks.
        active: Ranks of the current quorum.

    """
    return {**quorum_of(mates), "kind": wire.Kind.JOIN, "peers": [records[rank].info for rank in active]}


def step_of(records: Iterable[RankRecord], default: int) -> int:
    """The last step of the ranks: before the job's last step if all have resumed from a checkpoint."""
    return max((record.at[0] for record in records if record.at), default=default)


def release(records: dict[int, RankRecord], active: list[int], quorum: int) -> tuple[list[int], int]:
    """Release the training ranks to be restarted, once all of them have reported that they cannot recover in the job.

    Args:
        records: Rank -> record; the released ranks are removed.
        active: Ranks of the current quorum.
        quorum: Number of the current quorum.

    Returns:
        ``active`` and ``quorum``; after a release those of a job that has not started.

    """
    if not active or not all(records[rank].leaves_for_restart for rank in active):
        return active, quorum
    for record in [records.pop(rank) for rank in active]:
        record.answer({})
    return [], 0


def answer_left_over(records: Mapping[int, RankRecord], active: Sequence[int], over: wire.Reply | None) -> None:
    """Respond to ranks that request a quorum which cannot be formed: the job is over, or no rank has the training state.

    Args:
        records: Rank -> record, of all connected ranks.
        active: Ranks of the current quorum.
        over: The response if the job is over; else None.

    """
    for record in records.values():
        if record.asks_quorum and record.rank not in active and (over or not active):
            record.answer(over or {"kind": wire.Kind.ALONE})


def candidates_of(records: Mapping[int, RankRecord], active: Sequence[int], replica: int) -> list[RankRecord]:
    """Ranks that may be in the next quorum: training ranks and complete replicas of others that have requested it.

    Args:
        records: Rank -> record, of all connected ranks.
        active: Ranks of the current quorum.
        replica: Number of ranks that share a replica of the model.

    """
    waiting = [rank for rank, record in records.items() if record.asks_quorum]
    able = {*active, *complete(waiting, replica)}
    return [records[rank] for rank in waiting if rank in able]


class Waiting:
    """Logs, at debug level, which ranks wait for which others to request the next quorum, when that changes."""

    def __init__(self) -> None:
        self._awaited: list[int] = []

    def for_others(self, records: Mapping[int, RankRecord], active: Sequence[int]) -> bool:
        """Whether some training ranks have not requested the next quorum yet.

        Args:
            records: Rank -> record, of all connected ranks.
            active: Ranks of the current quorum.

        """
        waiting = [rank for rank in active if records[rank].asks_quorum]
        awaited = [rank for rank in active if rank not in waiting]
        if waiting and awaited and awaited != self._awaited:
            log.debug("coordinator: ranks %s wait for ranks %s to request the next quorum", waiting, awaited)
        self._awaited = awaited
        return bool(awaited)
