# SPDX-License-Identifier: Apache-2.0
"""Accepts connections to the coordinator: authenticates them, and dispatches ranks and supervisors of other hosts."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Callable
from typing import Any

from lightning_sagemaker.recovery import wire

Serve = Callable[[socket.socket, dict[str, Any]], None]
"""Serves a connection until it ends; the second argument is its first message."""

_HELLO = 10.0
"""Seconds in which a connection must identify itself."""


class Reception:
    """Listens until closed, with a thread for each connection.

    Args:
        host: Address to listen at; empty for all addresses of this machine.
        port: Port to listen at; 0 for a free one.
        backlog: Maximum number of connections that wait to be accepted.
        token: Token that each connection must send first.
        rank: Serves a rank.
        other_host: Serves the supervisor of another host.

    Attributes:
        port: Listening port.

    """

    def __init__(self, host: str, port: int, backlog: int, token: str, rank: Serve, other_host: Serve) -> None:
        self._token, self._rank, self._other_host = token, rank, other_host
        self._listener = socket.create_server((host, port), backlog=backlog)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="coordinator", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="coordinator-rank", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        wire.keep_alive(connection)
        connection.settimeout(_HELLO)
        hello = wire.receive(connection)
        if hello is None or not hmac.compare_digest(str(hello.get("token")), self._token):
            connection.close()
        elif "host" in hello:
            self._other_host(connection, hello)
        else:
            connection.settimeout(None)
            self._rank(connection, hello)
