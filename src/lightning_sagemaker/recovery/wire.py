# SPDX-License-Identifier: Apache-2.0
"""Messages between the ranks and their coordinator: four bytes of length, then JSON; and their variables.

A rank sends :class:`Hello`, then requests; the coordinator answers with a :class:`Reply`, which has the request's id, and
sends notices when it likes. docs/recovery.md has the sequence of messages when a rank dies.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypedDict, cast

ADDRESS = "LIGHTNING_SAGEMAKER_COORDINATOR"
"""``host:port`` of the coordinator; set by ``lightning-sagemaker supervise`` for each rank."""
TOKEN = "LIGHTNING_SAGEMAKER_COORDINATOR_TOKEN"
"""Token that a rank must send first."""
HOST = "LIGHTNING_SAGEMAKER_HOST"
"""Name or address by which other ranks reach this one's host."""
MODE = "LIGHTNING_SAGEMAKER_RECOVERY"
"""``in_job`` if the job's ranks continue without those that die; ``restart`` if all are restarted."""

RESTART = 75
"""Exit code of a rank that is to be restarted because another is lost: EX_TEMPFAIL of sysexits.h."""
CANNOT = 76
"""Exit code of a rank whose script cannot recover in the job: it is started again with the mode ``restart``."""


Message = dict[str, Any]
"""A message as it has been received."""


class Info(TypedDict, total=False):
    """Facts of a rank.

    Attributes:
        host: Name or address of its host.
        store: Port of its store.
        seed: Its seed of random numbers.
        together: Whether all ranks restart if one is lost.
        replica: How many ranks have a replica of the model together.

    """

    host: str
    store: int
    seed: int
    together: bool
    replica: int


class End(TypedDict, total=False):
    """Why the job cannot continue: too few ranks, or a step that fails again and again."""

    why: str
    left: int
    minimum: int
    collective: str
    step: int
    failures: int
    lost: list[int]


class Hello(TypedDict):
    """The first message of a rank."""

    token: str
    rank: int
    info: Info


@dataclass(frozen=True)
class Start:
    """The rank waits until all ranks have started, or joins those that train."""


@dataclass(frozen=True)
class NextQuorum:
    """The rank waits until all ranks of its quorum have asked for the next one.

    Attributes:
        at: Its training position; None if it has no state.
        admits: Whether replacements that have arrived take part.

    """

    at: list[int] | None
    admits: bool


@dataclass(frozen=True)
class Commit:
    """The rank votes on a step of its quorum.

    Attributes:
        quorum: Its number.
        step: Number of the step.
        ok: Whether the rank has the gradients.
        weights: Checksum of its weights, where they are compared.

    """

    quorum: int
    step: int
    ok: bool
    weights: int | None = field(default=None, repr=False)


@dataclass(frozen=True)
class StepDone:
    """A step is over, of ranks that do not vote. Not answered."""

    step: int


@dataclass(frozen=True)
class NeedAllRanks:
    """The steps call a collective that needs all ranks of the job. Not answered."""

    quorum: int
    collective: str


@dataclass(frozen=True)
class LeaveForRestart:
    """The rank's script cannot recover in the job: answered once all ranks of the quorum have said so."""


@dataclass(frozen=True)
class Finish:
    """The rank's first fit has ended."""


@dataclass(frozen=True)
class Heartbeat:
    """The rank is alive; the coordinator sends the same back, so that a rank notices that its network is cut."""


Request = Start | NextQuorum | Commit | StepDone | NeedAllRanks | LeaveForRestart | Finish | Heartbeat


@dataclass(frozen=True)
class Welcome:
    """The first notice: a rank, or the coordinator, that is silent for so many seconds is considered lost."""

    silence: float


@dataclass(frozen=True)
class QuorumBroken:
    """A rank of this quorum is lost, or it cannot go on: the step in flight is discarded."""

    quorum: int


Notice = Welcome | QuorumBroken | Heartbeat

REQUESTS: Mapping[str, type[Request]] = {
    kind.__name__: kind
    for kind in (Start, NextQuorum, Commit, StepDone, NeedAllRanks, LeaveForRestart, Finish, Heartbeat)
}
NOTICES: Mapping[str, type[Notice]] = {kind.__name__: kind for kind in (Welcome, QuorumBroken, Heartbeat)}


class Kind(str, Enum):
    """What a rank is to do, which has asked to start or for a quorum."""

    FIRST = "first"
    """Train: all ranks have started."""
    JOIN = "join"
    """Initialize as the others did, and then ask for their next quorum."""
    QUORUM = "quorum"
    """Go on in this quorum."""
    ALONE = "alone"
    """Nobody is left that has the training state."""
    LEAVE = "leave"
    """Exit, as its host leaves the job."""
    OVER = "over"
    """Exit, as the training is over."""


class Reply(TypedDict, total=False):
    """Answer to a request: a ``kind`` and what belongs to it; for :class:`Commit` a decision; else only the id.

    Attributes:
        id: Number of the request.
        kind: What a rank is to do.
        quorum: Its number.
        order: Its ranks.
        sources: Those with the newest state.
        holders: Those with the weights of the newest step.
        infos: Facts of its ranks, in order.
        peers: Those of the ranks that train, for one that is to join.
        step: The last committed step of the job; 0 before the first.
        end: Why the job cannot continue; None if it can.
        code: Exit code, where training is over.
        commit: Whether a step is committed.
        change: Whether replacements wait.
        differ: Whether the ranks' weights differ, though they must not.

    """

    id: int
    kind: Kind
    quorum: int
    order: list[int]
    sources: list[int]
    holders: list[int]
    infos: list[Info]
    peers: list[Info]
    step: int
    end: End | None
    code: int
    commit: bool
    change: bool
    differ: bool


def request_message(request: Request, number: int) -> dict[str, object]:
    """A request as it is sent; its id is 0 if no answer is expected."""
    return {"request": type(request).__name__, "id": number, **vars(request)}


def request_of(message: Message) -> tuple[int, Request]:
    """The id of a request that has been received, and the request."""
    fields = {name: value for name, value in message.items() if name not in ("request", "id")}
    return int(message["id"]), REQUESTS[message["request"]](**fields)


def notice_message(notice: Notice) -> dict[str, object]:
    """A notice as it is sent."""
    return {"notice": type(notice).__name__, **vars(notice)}


def answer_of(message: Message) -> Notice | Reply:
    """What the coordinator has sent."""
    if "notice" in message:
        return NOTICES[message.pop("notice")](**message)
    if "kind" in message:
        message["kind"] = Kind(message["kind"])
    return cast(Reply, message)


_HEAD = struct.Struct("!I")
_LARGEST = 1 << 20
"""Bytes; a message is some hundred."""


def send(connection: socket.socket, message: Mapping[str, object]) -> None:
    """Send one message; callers take turns."""
    body = json.dumps(message).encode()
    connection.sendall(_HEAD.pack(len(body)) + body)


def receive(connection: socket.socket) -> Message | None:
    """The next message; None when the other side has closed, or sends an invalid message."""
    head = _exactly(connection, _HEAD.size)
    if head is None:
        return None
    (size,) = _HEAD.unpack(head)
    body = _exactly(connection, size) if size <= _LARGEST else None
    try:
        message = None if body is None else json.loads(body)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = connection.recv(size - len(parts))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


def keep_alive(connection: socket.socket) -> None:
    """Small messages at once, and no connection that outlives its host for hours."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
