# SPDX-License-Identifier: Apache-2.0
"""A process that imports what most programs import, and is forked for each Python program of a simulated job.

``host_init.py``, the shim, requests a fork instead of starting a program. The process tree is: the server; a *root* for
each session of shims; the programs. A root leads a new session and inherits orphans, as ``host_init.py host`` does without
preloading, and a program enters its shim's namespaces, so it finds the same environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from lightning_sagemaker.simulator import host_init
from lightning_sagemaker.simulator.preload.handover import Group, forget_rank, groups, load, run_program

_POLL = 0.02
_NAMESPACES = ("user", "net", "uts", "mnt")


def main(arguments: Sequence[str]) -> None:
    """Serve until the simulator ends.

    Args:
        arguments: File descriptor of the listening socket, names of groups to import separated by commas, and unused
            words, which reserve space for the commands that ``ps`` shows for the programs.

    """
    host_init.prctl(host_init.PR_SET_PDEATHSIG, signal.SIGKILL)
    listener = socket.socket(fileno=int(arguments[0]))
    leave_no_trace()
    loaded = load_groups(arguments[1].split(","))
    threads = len(os.listdir("/proc/self/task")) - 1
    if threads:  # a fork would copy their locks, but not the threads
        sys.exit(
            f"Each process imports by itself, because importing started {threads} thread(s). HINT: use --env "
            "OMP_NUM_THREADS=1."
        )
    gc.collect()
    gc.freeze()  # the forks share these objects' memory as long as nothing touches them
    _serve(listener, loaded)


def leave_no_trace() -> None:
    """Undo what starting this module has changed, for the programs that are forked later."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == "lightning_sagemaker"]:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__module__.startswith("lightning_sagemaker")]
    main = vars(sys.modules["__main__"])
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]


def load_groups(names: Sequence[str]) -> list[Group]:
    """Import these groups, and remove their modules from ``sys.modules`` until a program imports them."""
    chosen = [group for group in groups() if group.name in names]
    hidden = frozenset(package for group in groups() for package in group.packages)
    filters = list(warnings.filters)
    loaded = [group for group in chosen if load(group, hidden)]
    warnings.filters[:] = filters  # type: ignore[index]
    modules = {name: module for group in loaded for name, module in group.modules.items()}
    forget_rank(modules)
    for name in modules:
        del sys.modules[name]
    return loaded


def _serve(listener: socket.socket, loaded: list[Group]) -> None:
    """Pass each shim that connects to its root, which is forked if there is none yet."""
    roots: dict[int, socket.socket] = {}
    while True:
        connection, _ = listener.accept()
        _, streams, *_ = socket.recv_fds(connection, 1, 3)
        with contextlib.suppress(OSError):  # the shim has exited
            session = os.getsid(_pid_of_peer(connection))
            if session not in roots:
                ours, theirs = socket.socketpair()
                if not os.fork():
                    for other in (listener, connection, ours, *roots.values()):
                        other.close()
                    for number in streams:
                        os.close(number)
                    _be_root(theirs, loaded)
                theirs.close()
                roots[session] = ours
            socket.send_fds(roots[session], [b"+"], [connection.fileno(), *streams])
        for number in streams:
            os.close(number)
        connection.close()


def _pid_of_peer(connection: socket.socket) -> int:
    pid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def _be_root(channel: socket.socket, loaded: list[Group]) -> NoReturn:
    """Fork for each request of a session; forward signals to the programs, and their exit statuses to the shims."""
    os.setsid()
    host_init.prctl(host_init.PR_SET_PDEATHSIG, signal.SIGKILL)
    host_init.prctl(host_init.PR_SET_CHILD_SUBREAPER, 1)
    shims: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([channel, *shims.values()], [], [], _POLL if shims else None)
        if channel in ready:
            child, connection = _fork_for_request(channel, list(shims.values()), loaded)
            shims[child] = connection
        for child, connection in list(shims.items()):
            if connection in ready:
                # When a shim has exited, its program is killed, as by the death of its parent.
                for number in _receive(connection) or [signal.SIGKILL]:
                    os.kill(child, number)
        _pass_on_ends(shims)


def _enter_namespaces(pid: int) -> None:
    """Those of the shim that has asked: of its user, network, host name and files."""
    for kind in _NAMESPACES:
        if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"):
            number = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
            if ctypes.CDLL(None, use_errno=True).setns(number, 0):
                raise OSError(ctypes.get_errno(), f"setns, {kind}")
            os.close(number)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(64)
    except ConnectionError:
        return b""


def _pass_on_ends(shims: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            connection = shims.pop(ended[0], None)
            if connection is not None:  # else an orphan
                with contextlib.suppress(OSError):
                    connection.sendall(ended[1].to_bytes(4, "little"))
                connection.close()


def _fork_for_request(
    channel: socket.socket, others: list[socket.socket], loaded: list[Group]
) -> tuple[int, socket.socket]:
    message, numbers, *_ = socket.recv_fds(channel, 1, 4)
    if not message:
        os._exit(0)  # the server has exited; the programs get their parent-death signal
    connection = socket.socket(fileno=numbers[0])
    with connection.makefile("r") as file:
        request = json.loads(file.readline())
    child = os.fork()
    if not child:
        _enter_namespaces(_pid_of_peer(connection))
        for other in (channel, connection, *others):
            other.close()
        _be_program(request, numbers[1:], loaded)
    for number in numbers[1:]:
        os.close(number)
    with contextlib.suppress(OSError):
        connection.sendall(b"+")
    return child, connection


def _be_program(request: dict[str, Any], streams: list[int], loaded: list[Group]) -> NoReturn:
    os.setpgid(0, 0)
    host_init.prctl(host_init.PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.umask(request["umask"])
    for number in host_init.FORWARDED:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else default)
    run_program(request, loaded, _say_on_rank_zero)


def _say_on_rank_zero(sentence: str) -> None:
    if os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")) == "0":
        print(f"lightning-sagemaker: {sentence}", file=sys.stderr)
