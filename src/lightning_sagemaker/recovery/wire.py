# SPDX-License-Identifier: Apache-2.0
"""Messages between the ranks and their coordinator: four bytes of length, then JSON; and their variables."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, TypedDict

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


class Reply(TypedDict, total=False):
    """An answer of the coordinator, or a notification.

    Attributes:
        id: Number of the request.
        kind: What a rank is to do: ``first``, ``quorum``, ``join``, ``alone``, ``leave`` or ``over``.
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

    """

    id: int
    kind: str
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


_HEAD = struct.Struct("!I")
_LARGEST = 1 << 20
"""Bytes; a message is some hundred."""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message; callers take turns."""
    body = json.dumps(message).encode()
    connection.sendall(_HEAD.pack(len(body)) + body)


def receive(connection: socket.socket) -> dict[str, Any] | None:
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
