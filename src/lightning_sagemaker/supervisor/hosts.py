# SPDX-License-Identifier: Apache-2.0
"""The coordinator's connections to the supervisors of other hosts, which receive the job's state and ranks to kill."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

from lightning_sagemaker.recovery import wire


class Hosts:
    """The connected supervisors of the other hosts.

    Args:
        silence: Seconds without a heartbeat after which a host is disconnected; it reconnects when it can.
        status: Returns the job's state, sent with each response.
        lose: Called with a rank that has exited.
        stop: Called when a host has received a signal to stop its ranks.
        leave: Called with the ranks of a host that leaves the job.
        give_up: Called when a rank is not restarted.

    """

    def __init__(
        self,
        silence: float,
        status: Callable[[], dict[str, Any]],
        lose: Callable[[int], None],
        stop: Callable[[], None],
        leave: Callable[[Collection[int]], None],
        give_up: Callable[[], None],
    ) -> None:
        self._silence, self._status, self._lose, self._stop, self._leave = silence, status, lose, stop, leave
        self._give_up = give_up
        self._of_rank: dict[int, _Host] = {}
        self._to_kill: set[int] = set()
        self._lock = threading.Lock()

    def serve(self, connection: socket.socket, hello: dict[str, Any]) -> None:
        """Serve until the supervisor disconnects."""
        ranks = [int(rank) for rank in hello["ranks"]]
        host = _Host(connection)
        connection.settimeout(self._silence)
        with self._lock:
            for old in {self._of_rank[rank] for rank in ranks if rank in self._of_rank}:
                old.end()
            self._of_rank.update(dict.fromkeys(ranks, host))
            host.send({"silence": self._silence, "kill": sorted(self._to_kill.intersection(ranks)), **self._status()})
        while (message := wire.receive(connection)) is not None:
            if message["stopping"]:
                self._stop()
            if "lost" in message:
                self.is_replaced(int(message["lost"]))
                self._lose(int(message["lost"]))
            if "gave_up" in message:
                self._give_up()
            if "leaving" in message:
                self._leave([int(rank) for rank in message["leaving"]])
            host.send({"id": message["id"], **self._status()})
        with self._lock:
            for rank in ranks:
                if self._of_rank.get(rank) is host:
                    del self._of_rank[rank]
        host.end()

    def kill(self, rank: int) -> None:
        """Make a frozen rank's host kill it: now, or as soon as the network has recovered."""
        with self._lock:
            self._to_kill.add(rank)
            host = self._of_rank.get(rank)
        if host is not None:
            host.send({"kill": [rank]})

    def is_replaced(self, rank: int) -> None:
        """Withdraw the order to kill a rank, as it has been replaced."""
        with self._lock:
            self._to_kill.discard(rank)

    @property
    def have_ranks(self) -> bool:
        """Whether ranks of other hosts are still running."""
        return bool(self._hosts())

    def close(self) -> None:
        """Close all connections."""
        for host in self._hosts():
            host.end()

    def _hosts(self) -> Iterable[_Host]:
        with self._lock:
            return set(self._of_rank.values())


class _Host:
    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._sending = connection, threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        with self._sending, suppress(OSError):
            wire.send(self._connection, message)

    def end(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
