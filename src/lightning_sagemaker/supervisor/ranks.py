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
        world_size: Ranks of the job, which is the number of shards that its data has.
        minimum: Minimum number of ranks to continue.
        rejoin_timeout: Seconds to wait for a replacement before the others continue without it.
        silence: Seconds without a heartbeat after which a rank is lost.
        attempts: Times that the same step may fail.
        patience: Seconds to wait for the minimum.
        to_begin: Number of ranks to start training with; the others join later. None: all.
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

    def need_all(self, collective: str, say: Callable[[str], None]) -> None:
        """A rank cannot train on the shard of a missing one, because of a collective."""
        if not self.collective:
            say(
                f"a step of the script calls {collective}, which needs all {self.world_size} ranks: while one is missing"
                " the others wait for its replacement."
            )
        self.collective, self.minimum = collective, self.world_size

    def too_few(self, left: int) -> wire.End:
        """Why the job ends if so many ranks are left."""
        return {"why": "few", "left": left, "minimum": self.minimum, "collective": self.collective}

    def patience_of(self, present: int) -> float:
        """Seconds that so many ranks wait for replacements of the others."""
        return max(self.rejoin_timeout, self.patience if present < self.minimum else 0.0)

    @property
    def fewest(self) -> int:
        """Number of ranks to start training with."""
        return self.to_begin or self.world_size


@dataclass
class RankRecord:
    """What the coordinator knows of one process, as long as its connection lasts.

    Attributes:
        rank: Its rank in the job.
        connection: To it.
        info: Information for the others.
        last_heartbeat: Time of its last message.
        joined: Number of its first quorum.
        request: What it waits for: a start, a quorum or a restart. A rank waits for one thing at a time; for a step that it
            has voted on the coordinator has the ids.
        request_id: Id of that request.
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
        """The training position with which it asks for a quorum; None if it has no state."""
        return self.request.at if isinstance(self.request, wire.NextQuorum) else None

    @property
    def admits(self) -> bool:
        """Whether the quorum that it asks for may have replacements."""
        return not isinstance(self.request, wire.NextQuorum) or self.request.admits

    @property
    def leaves_for_restart(self) -> bool:
        """Whether its script cannot recover in the job."""
        return isinstance(self.request, wire.LeaveForRestart)

    def answer(self, reply: wire.Reply) -> None:
        """Answer the request that it waits for."""
        self.request = None
        self.send({**reply, "id": self.request_id})

    def send(self, message: Mapping[str, object]) -> None:
        """Send it a message; a lost connection is detected elsewhere."""
        with self.sending, contextlib.suppress(OSError):
            wire.send(self.connection, message)


def quorum_of(records: Sequence[RankRecord]) -> wire.Reply:
    """What the ranks of a quorum are told about each other.

    Args:
        records: In the order of the quorum.

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
    """What a rank is told that is to join others.

    Args:
        mates: Those who join with it.
        records: All.
        active: Those who train.

    """
    return {**quorum_of(mates), "kind": wire.Kind.JOIN, "peers": [records[rank].info for rank in active]}


def step_of(records: Iterable[RankRecord], default: int) -> int:
    """The step that ranks have done last: an earlier one than the job's, after all have resumed from a checkpoint."""
    return max((record.at[0] for record in records if record.at), default=default)


def release(records: dict[int, RankRecord], active: list[int], quorum: int) -> tuple[list[int], int]:
    """Release the ranks that train, to be started again, once all of them have said that they cannot recover in the job.

    Args:
        records: Those who are left; the released are removed.
        active: Those who train.
        quorum: Their number.

    Returns:
        ``active`` and ``quorum``, as if nobody had started yet if they were released.

    """
    if not active or not all(records[rank].leaves_for_restart for rank in active):
        return active, quorum
    for record in [records.pop(rank) for rank in active]:
        record.answer({})
    return [], 0


def answer_left_over(records: Mapping[int, RankRecord], active: Sequence[int], over: wire.Reply | None) -> None:
    """Answer those who ask for a quorum that will not be: it is too late, or nobody knows where the training is.

    Args:
        records: All.
        active: Those who train.
        over: The answer where it is too late; None if it is not.

    """
    for record in records.values():
        if record.asks_quorum and record.rank not in active and (over or not active):
            record.answer(over or {"kind": wire.Kind.ALONE})


def candidates_of(records: Mapping[int, RankRecord], active: Sequence[int], replica: int) -> list[RankRecord]:
    """Who may be of the next quorum: those who train, and complete replicas of others, if they have asked for it.

    Args:
        records: All.
        active: Those who train.
        replica: Ranks of a replica of the model.

    """
    asking = [rank for rank, record in records.items() if record.asks_quorum]
    able = {*active, *complete(asking, replica)}
    return [records[rank] for rank in asking if rank in able]


class Waiting:
    """Which ranks wait for which others to ask for the next quorum; the debug log has a line when that changes."""

    def __init__(self) -> None:
        self._awaited: list[int] = []

    def for_others(self, records: Mapping[int, RankRecord], active: Sequence[int]) -> bool:
        """Whether some that train have yet to ask.

        Args:
            records: All.
            active: Those who train.

        """
        asking = [rank for rank in active if records[rank].asks_quorum]
        awaited = [rank for rank in active if rank not in asking]
        if asking and awaited and awaited != self._awaited:
            log.debug("coordinator: ranks %s wait for ranks %s to ask for the next quorum", asking, awaited)
        self._awaited = awaited
        return bool(awaited)
