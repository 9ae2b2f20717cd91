# SPDX-License-Identifier: Apache-2.0
"""Connections of a process group, which are shut down to abort what waits on them.

gloo waits for a peer that is frozen or cut off until its time limit of half an hour, and its ``abort`` does nothing
(torch 2.13). Shutting down a connection wakes it at once: its thread reads the end, and fails all that is pending.

Only reading is shut down, and a copy keeps the connection open when gloo closes it, so that writing does not fail, here or
at the peer: what gloo's thread begins to send on a peer's request, and cannot, is lost, and who waits for it is not woken.
"""

from __future__ import annotations

import contextlib
import os
import socket

_OPEN = "/proc/self/fd"


Socket = tuple[int, str]
"""Number of a file descriptor, and the kernel's name of its socket: the number alone may soon be another socket's."""


def open_sockets() -> set[Socket]:
    """This process's sockets; none where there is no ``/proc``."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(_OPEN):
            with contextlib.suppress(OSError):
                if (link := os.readlink(f"{_OPEN}/{name}")).startswith("socket:"):
                    found.add((int(name), link))
    return found


class ShutDown:
    """Connections that have been shut down, and are open nevertheless."""

    def __init__(self) -> None:
        self._copies: dict[str, socket.socket] = {}

    def add(self, sockets: set[Socket], but_at: int) -> None:
        """Shut down connections between ranks; their descriptors stay open until their owner closes them.

        Args:
            sockets: From :func:`open_sockets`. Unix sockets, such as those of loader workers, are left alone.
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
        """Close them: the peers have noticed the loss themselves."""
        while self._copies:
            self._copies.popitem()[1].close()
