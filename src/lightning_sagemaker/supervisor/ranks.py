# SPDX-License-Identifier: Apache-2.0
"""The coordinator's state of a job, and of each of its ranks."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_sagemaker.recovery import wire


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

    @property
    def fewest(self) -> int:
        """Number of ranks to start training with."""
        return self.to_begin or self.world_size


@dataclass
class Member:
    """One process, as long as its connection lasts.

    Attributes:
        rank: Its rank in the job.
        connection: To it.
        info: Information for the others.
        heard: Time of its last heartbeat.
        joined: Number of its first quorum.
        starting: Id of its request, while it waits for the first quorum.
        asking: Id of its request, while it waits for a later quorum.
        at: Its training position; None if it has no state.
        admits: Whether the quorum that it asks for may have replacements.
        cannot: Id of its request, if its script cannot recover in the job.
        sending: Lock for sending.

    """

    rank: int
    connection: socket.socket
    info: dict[str, Any]
    heard: float
    joined: int | None = None
    starting: int | None = None
    asking: int | None = None
    at: list[int] | None = None
    admits: bool = True
    cannot: int | None = None
    sending: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, message: dict[str, Any]) -> None:
        """Send it a message; a lost connection is detected elsewhere."""
        with self.sending, contextlib.suppress(OSError):
            wire.send(self.connection, message)


def quorum_of(members: Sequence[Member]) -> dict[str, Any]:
    """What the members of a quorum are told about each other.

    Args:
        members: In their order.

    """
    newest = max((member.at for member in members if member.at is not None), default=None)
    has = [member for member in members if newest and member.at and member.at[0] == newest[0]]
    return {
        "order": [member.rank for member in members],
        "sources": [member.rank for member in has if member.at == newest],
        "holders": [member.rank for member in has],
        "infos": [member.info for member in members],
    }


def join_of(mates: Sequence[Member], members: dict[int, Member], active: Sequence[int]) -> dict[str, Any]:
    """What a rank is told that is to join others.

    Args:
        mates: Those who join with it.
        members: All.
        active: Those who train.

    """
    return {"kind": "join", "peers": [members[rank].info for rank in active], **quorum_of(mates)}


def step_of(members: Iterable[Member], default: int) -> int:
    """The step that members have done last: an earlier one than the job's, after all have resumed from a checkpoint."""
    return max((member.at[0] for member in members if member.at), default=default)


def release(members: dict[int, Member], active: list[int], quorum: int) -> tuple[list[int], int]:
    """Release the ranks that train, to be started again, once all of them have said that they cannot recover in the job.

    Args:
        members: Those who are left; the released are removed.
        active: Those who train.
        quorum: Their number.

    Returns:
        ``active`` and ``quorum``, as if nobody had started yet if they were released.

    """
    if not active or any(members[rank].cannot is None for rank in active):
        return active, quorum
    for member in [members.pop(rank) for rank in active]:
        member.tell({"id": member.cannot})
    return [], 0
