# SPDX-License-Identifier: Apache-2.0
"""Messages between the ranks and their coordinator: four bytes of length, then JSON; and their variables."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

ADDRESS = "LIGHTNING_SAGEMAKER_COORDINATOR"
"""``host:port`` of the coordinator; set by ``lightning-sagemaker supervise`` for each rank."""
TOKEN = "LIGHTNING_SAGEMAKER_COORDINATOR_TOKEN"
"""Token that a rank must send first."""
HOST = "LIGHTNING_SAGEMAKER_HOST"
"""Name or address by which other ranks reach this one's host."""
MODE = "LIGHTNING_SAGEMAKER_RECOVERY"
"""``in_job`` if the job's ranks continue without those that die."""

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
