# SPDX-License-Identifier: Apache-2.0
"""Connections of a process group, which are shut down to abort what waits on them.

gloo waits for a peer that is frozen or cut off until its time limit of half an hour, and its ``abort`` does nothing
(torch 2.13). Shutting down a connection wakes it at once.
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


def shut_down(sockets: set[Socket], but_at: int) -> None:
    """Shut down these connections between hosts; their descriptors stay open until their owner closes them.

    Args:
        sockets: From :func:`open_sockets`. Unix sockets, such as those of loader workers, are left alone.
        but_at: A port of this process: connections accepted on it are not shut down.

    """
    for number, _ in sockets:
        with contextlib.suppress(OSError):
            copy = socket.socket(fileno=os.dup(number))
            with contextlib.closing(copy):
                copy.getpeername()  # a listening socket has none
                if copy.family != socket.AF_UNIX and copy.getsockname()[1] != but_at:
                    copy.shutdown(socket.SHUT_RDWR)
