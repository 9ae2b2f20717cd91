# SPDX-License-Identifier: Apache-2.0
"""The connection of another host's supervisor to the coordinator."""

from __future__ import annotations

import itertools
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Protocol

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.recovery import wire

_HEARTBEAT_SECONDS = 1.0
_RETRY = 0.3
_CONNECT = 3.0
"""Time limit of one attempt in seconds; TCP sends a lost packet again after one and after three."""
_NAME = 60.0
"""Seconds in which the name of the coordinator's host has to resolve: those of a cluster appear with its hosts."""


class Training(Protocol):
    """The state of the job, as a supervisor needs it."""

    is_stopping: bool
    """Whether the ranks have been stopped: one that exits is not replaced."""

    @property
    def step(self) -> int:
        """Number of committed steps."""

    @property
    def has_started(self) -> bool:
        """Whether all ranks have joined."""

    @property
    def finished(self) -> bool:
        """Whether the ranks have reached the end of their first fit."""

    @property
    def ended(self) -> bool:
        """Whether the ranks have received the message to exit, with a checkpoint."""

    @property
    def together(self) -> bool:
        """Whether all ranks are restarted when one is lost."""

    @property
    def replica(self) -> int:
        """Number of ranks that share a replica of the model; they are lost together."""

    @property
    def trains(self) -> bool:
        """Whether ranks train or form a quorum, that is, not all are lost."""

    @property
    def is_reachable(self) -> bool:
        """Whether a rank that is started now can take part."""

    @property
    def is_gone(self) -> bool:
        """Whether the coordinator is unreachable for good."""

    def lose(self, rank: int) -> None:
        """Record that a rank has exited."""

    def give_up(self) -> None:
        """End the job, as a rank that the others need is not restarted."""

    def leave(self, ranks: Collection[int]) -> None:
        """Release ranks of a host by plan, at the end of a step."""


class Link:
    """Connection of one host; it is reestablished after a network failure.

    Args:
        address: ``host:port`` of the coordinator.
        token: Token that the coordinator expects.
        host: Number of this host.
        ranks: Numbers of this host's ranks.
        on_kill: Called in another thread with a rank that is frozen or disconnected.
        patience: Seconds to retry an unresponsive coordinator.
        to_start: Seconds to wait for the first response, as hosts do not start at the same time.

    Raises:
        LaunchError: If the coordinator does not respond.

    """

    def __init__(
        self,
        address: str,
        token: str,
        host: int,
        ranks: Sequence[int],
        on_kill: Callable[[int], None],
        patience: float = 60.0,
        to_start: float = 600.0,
    ) -> None:
        name, _, port = address.rpartition(":")
        self._address, self._on_kill, self._patience = (name.strip("[]"), int(port)), on_kill, patience
        self._hello = {"token": token, "host": host, "ranks": list(ranks)}
        self._numbers = itertools.count(1)
        self._replies: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._connection: socket.socket | None = None
        self._status: dict[str, Any] = {}
        self._problem: Exception | str = "it closed the connection"
        self.is_gone = self.is_stopping = False
        begin = time.monotonic()
        if not self._connect(to_start, is_first=True):
            raise LaunchError(
                f"The coordinator at {address} has not answered for {time.monotonic() - begin:.0f} s ({self._problem})."
                " HINT: start 'lightning-sagemaker supervise --host-rank 0' on the first host; check --coordinator and the"
                " network."
            )
        assert self._connection is not None
        self.own_address: str = self._connection.getsockname()[0]
        for target in (self._listen, self._send_heartbeats):
            threading.Thread(target=target, name="link", daemon=True).start()

    @property
    def step(self) -> int:
        """Number of committed steps. This and the following properties are from the coordinator's last response."""
        return int(self._status.get("step", 0))

    @property
    def has_started(self) -> bool:
        """Whether all ranks have joined."""
        return bool(self._status.get("has_started"))

    @property
    def finished(self) -> bool:
        """Whether the ranks have reached the end of their first fit."""
        return bool(self._status.get("finished"))

    @property
    def ended(self) -> bool:
        """Whether the ranks have received the message to exit."""
        return bool(self._status.get("ended"))

    @property
    def together(self) -> bool:
        """Whether all ranks are restarted when one is lost."""
        return bool(self._status.get("together"))

    @property
    def replica(self) -> int:
        """Number of ranks that share a replica of the model."""
        return int(self._status.get("replica", 1))

    @property
    def trains(self) -> bool:
        """Likewise."""
        return bool(self._status.get("trains"))

    @property
    def is_reachable(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    def lose(self, rank: int) -> None:
        """Report the exit of a rank; wait until the coordinator has responded with the new state or is unreachable."""
        while not self._replies.empty():
            self._replies.get()
        number = next(self._numbers)
        if self._send({"id": number, "lost": rank, "stopping": self.is_stopping}):
            while (reply := self._replies.get()) is not None and reply != number:
                pass

    def give_up(self) -> None:
        """Report that a rank which the others need is not restarted."""
        self._send({"id": 0, "gave_up": True, "stopping": self.is_stopping})

    def leave(self, ranks: Collection[int]) -> None:
        """Report ranks that leave the job; each receives a message when it may exit."""
        self._send({"id": 0, "leaving": sorted(ranks), "stopping": self.is_stopping})

    def close(self) -> None:
        """Report that all ranks of this host have exited, and disconnect."""
        self._closed.set()
        if (connection := self._connection) is not None:
            _end(connection)

    def _connect(self, patience: float, is_first: bool = False) -> bool:
        begin = time.monotonic()
        while not self._closed.is_set():
            try:
                connection = socket.create_connection(self._address, timeout=_CONNECT)
                wire.keep_alive(connection)
                wire.send(connection, self._hello)
                welcome = wire.receive(connection)
                if welcome is not None:
                    connection.settimeout(welcome["silence"])
                    self._kill(welcome)  # before replacements are started
                    self._status, self._connection = welcome, connection
                    return True
                connection.close()
            except ConnectionRefusedError as error:
                if not is_first:  # its host responds, but nothing listens there
                    return False
                self._problem = error
            except (OSError, UnicodeError) as error:
                self._problem = error
                if is_first and isinstance(error, (socket.gaierror, UnicodeError)):  # more likely misspelled than late
                    patience = min(patience, _NAME)
            if time.monotonic() > begin + patience:
                return False
            time.sleep(_RETRY)
        return False

    def _listen(self) -> None:
        while True:
            connection = self._connection
            assert connection is not None
            while (message := wire.receive(connection)) is not None:
                if "kill" in message:
                    self._kill(message)
                    continue
                self._status = message
                if message["id"]:
                    self._replies.put(message["id"])
            self._connection = None
            _end(connection)
            self._replies.put(None)
            if not self._connect(self._patience):
                self.is_gone = True
                return

    def _kill(self, message: dict[str, Any]) -> None:
        for rank in message["kill"]:
            self._on_kill(int(rank))

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(_HEARTBEAT_SECONDS):
            self._send({"id": 0, "stopping": self.is_stopping})

    def _send(self, message: dict[str, Any]) -> bool:
        connection = self._connection
        if connection is None:
            return False
        try:
            with self._sending:
                wire.send(connection, message)
        except OSError:
            _end(connection)  # the other thread reconnects
            return False
        return True


def _end(connection: socket.socket) -> None:
    """Shut a connection down, which wakes up the threads that wait for it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
