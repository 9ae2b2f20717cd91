# SPDX-License-Identifier: Apache-2.0
"""Messages between ranks and coordinator (four bytes of length, then JSON), and the environment variables for them.

A rank sends :class:`Hello`, then requests; the coordinator responds with a :class:`Reply`, which has the request's id, and
sends notices at any time. docs/recovery.md has the sequence of messages when a rank dies.
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
"""``in_job`` if the other ranks continue when one dies; ``restart`` if all are restarted."""

RESTART = 75
"""Exit code of a rank that is to be restarted because another is lost: EX_TEMPFAIL of sysexits.h."""
CANNOT = 76
"""Exit code of a rank whose script cannot recover in the job: it is restarted with the mode ``restart``."""


Message = dict[str, Any]
"""A message as it has been received."""


class Info(TypedDict, total=False):
    """Information about a rank, for the other ranks and the coordinator.

    Attributes:
        host: Name or address of the rank's host.
        store: Port of the rank's store.
        seed: The rank's seed of random numbers.
        together: Whether all ranks restart if one is lost.
        replica: Number of ranks that share a replica of the model.

    """

    host: str
    store: int
    seed: int
    together: bool
    replica: int


class End(TypedDict, total=False):
    """Why the job cannot continue: too few ranks, or a step that fails repeatedly."""

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
    """The rank waits until all ranks of its quorum have requested the next one.

    Attributes:
        at: Training position of the rank; None if it has no state.
        admits: Whether replacements that have arrived take part.

    """

    at: list[int] | None
    admits: bool


@dataclass(frozen=True)
class Commit:
    """The rank votes on a step of its quorum.

    Attributes:
        quorum: Number of the quorum.
        step: Number of the step.
        ok: Whether the rank has the gradients.
        weights: Checksum of the rank's weights, if they are compared.

    """

    quorum: int
    step: int
    ok: bool
    weights: int | None = field(default=None, repr=False)


@dataclass(frozen=True)
class StepDone:
    """A step is complete, of ranks that do not vote. There is no reply."""

    step: int


@dataclass(frozen=True)
class NeedAllRanks:
    """The steps call a collective that needs all ranks of the job. There is no reply."""

    quorum: int
    collective: str


@dataclass(frozen=True)
class LeaveForRestart:
    """The rank's script cannot recover in the job. The reply is sent once all ranks of the quorum have sent this."""


@dataclass(frozen=True)
class Finish:
    """The rank's first fit has ended."""


@dataclass(frozen=True)
class Heartbeat:
    """The rank is alive. The coordinator returns the message, so that a rank detects a network failure."""


Request = Start | NextQuorum | Commit | StepDone | NeedAllRanks | LeaveForRestart | Finish | Heartbeat


@dataclass(frozen=True)
class Welcome:
    """The first notice, with the seconds of silence after which a rank or the coordinator is considered lost."""

    silence: float


@dataclass(frozen=True)
class QuorumBroken:
    """A rank of this quorum is lost, or the quorum cannot continue: the step in flight is discarded."""

    quorum: int


Notice = Welcome | QuorumBroken | Heartbeat

REQUESTS: Mapping[str, type[Request]] = {
    kind.__name__: kind
    for kind in (Start, NextQuorum, Commit, StepDone, NeedAllRanks, LeaveForRestart, Finish, Heartbeat)
}
NOTICES: Mapping[str, type[Notice]] = {kind.__name__: kind for kind in (Welcome, QuorumBroken, Heartbeat)}


class Kind(str, Enum):
    """What a rank does after its request to start or for a quorum."""

    FIRST = "first"
    """Train: all ranks have started."""
    JOIN = "join"
    """Initialize as the others did, and then request their next quorum."""
    QUORUM = "quorum"
    """Continue in this quorum."""
    ALONE = "alone"
    """No rank with the training state is left."""
    LEAVE = "leave"
    """Exit, as its host leaves the job."""
    OVER = "over"
    """Exit, as the training is over."""


class Reply(TypedDict, total=False):
    """Reply to a request: a ``kind`` with its values; for :class:`Commit` a decision; else only the id.

    Attributes:
        id: Id of the request.
        kind: What the rank does next.
        quorum: Number of the quorum.
        order: Ranks of the quorum.
        sources: Ranks with the newest state.
        holders: Ranks with the weights of the newest step.
        infos: Information about the quorum's ranks, in order.
        peers: Information about the training ranks, for a rank that is to join.
        step: The last committed step of the job; 0 before the first.
        end: Why the job cannot continue; None if it can.
        code: Exit code, if training is over.
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
    """Encode a request; its id is 0 if no reply is expected."""
    return {"request": type(request).__name__, "id": number, **vars(request)}


def request_of(message: Message) -> tuple[int, Request]:
    """Decode a received request; returns its id and the request."""
    fields = {name: value for name, value in message.items() if name not in ("request", "id")}
    return int(message["id"]), REQUESTS[message["request"]](**fields)


def notice_message(notice: Notice) -> dict[str, object]:
    """Encode a notice."""
    return {"notice": type(notice).__name__, **vars(notice)}


def answer_of(message: Message) -> Notice | Reply:
    """Decode a received notice or reply."""
    if "notice" in message:
        return NOTICES[message.pop("notice")](**message)
    if "kind" in message:
        message["kind"] = Kind(message["kind"])
    return cast(Reply, message)


_HEAD = struct.Struct("!I")
_LARGEST = 1 << 20
"""Maximum bytes of a message; typical ones have some hundred."""


def send(connection: socket.socket, message: Mapping[str, object]) -> None:
    """Send one message. Callers must not send concurrently."""
    body = json.dumps(message).encode()
    connection.sendall(_HEAD.pack(len(body)) + body)


def receive(connection: socket.socket) -> Message | None:
    """Receive the next message; None if the other side has closed the connection or has sent an invalid message."""
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
    """Send small messages at once, and enable TCP keep-alive, so that a connection to a dead host ends at some time."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
