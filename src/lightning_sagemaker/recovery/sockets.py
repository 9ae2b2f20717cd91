# SPDX-License-Identifier: Apache-2.0
"""Shuts down connections of a process group, to abort collectives that wait on them.

gloo waits for a peer that is frozen or cut off until its time limit of half an hour, and its ``abort`` does nothing
(torch 2.13). Shutting down a connection wakes it at once: its thread reads end-of-file and fails all pending operations.

Only reading is shut down, and a copy keeps the connection open when gloo closes it, so that writing does not fail, here or
at the peer: if gloo's thread fails to send what a peer has requested, the error is lost and its waiter is not woken.
"""

from __future__ import annotations

import contextlib
import os
import socket

_OPEN = "/proc/self/fd"


Socket = tuple[int, str]
"""A file descriptor, and the kernel's name of its socket, as the descriptor may soon be reused for another one."""


def open_sockets() -> set[Socket]:
    """This process's sockets; empty if there is no ``/proc``."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(_OPEN):
            with contextlib.suppress(OSError):
                if (link := os.readlink(f"{_OPEN}/{name}")).startswith("socket:"):
                    found.add((int(name), link))
    return found


class ShutDown:
    """Connections that were shut down but whose descriptors are still open."""

    def __init__(self) -> None:
        self._copies: dict[str, socket.socket] = {}

    def add(self, sockets: set[Socket], but_at: int) -> None:
        """Shut down connections between ranks; their descriptors stay open until their owner closes them.

        Args:
            sockets: Sockets from :func:`open_sockets`. Unix sockets, such as those of loader workers, are skipped.
            but_at: A port of this process: connections accepted on it are not shut down.

        """
        for number, name in sockets:
            if name in self._copies:
                continue
            with contextlib.suppress(OSError):
                copy = socket.socket(fileno=os.dup(number))
                try:
                    copy.getpeername()  # a listening socket has none
                    if copy.family != socket.AF_UNIX and copy.getsockname()[1] != but_at:
                        copy.shutdown(socket.SHUT_RD)
                        self._copies[name] = copy
                finally:
                    if name not in self._copies:
                        copy.close()

    def close(self) -> None:
        """Close the connections, once the peers have noticed the loss themselves."""
        while self._copies:
            self._copies.popitem()[1].close()
