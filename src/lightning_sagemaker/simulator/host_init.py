# SPDX-License-Identifier: Apache-2.0
"""The first process of a simulated host, and of each of its ranks: run by path, with the standard library only.

``host_init.py host`` simulates a container's first process: when its program ends, or the simulator exits, it kills all
processes of the host. ``host_init.py rank`` runs between the launcher (torchrun, mpirun) and the user's program: it
gives the rank a separate output stream, so that lines never mix, restores the variables that mpirun would set on
separate hosts, and reports the rank's exit code before the launcher reacts to it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time

POLL = 0.02
"""Polling interval of the child and the parent in seconds."""

FORK_POLL = 0.5
"""The same for a fork of the preload server, which reports the exit."""

PRELOAD = "preload"
"""Name of the preload server's socket in the simulator's folder."""

NAMES_FILE = "names"
"""Name of the file in the simulator's folder that hosts have as ``/etc/hosts``; none if they share this machine's name."""

BASE = "SAGEMAKER_BASE_DIR"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_NEW_MOUNTS, _NEW_NAME, _NEW_USER = 0x00020000, 0x04000000, 0x10000000  # linux/sched.h
_BIND, _RECURSIVE, _PRIVATE = 1 << 12, 1 << 14, 1 << 18  # linux/mount.h
_CONTAINERS = "/opt/ml"
"""Folder of a job in the containers, which scripts name."""
_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
FORWARDED = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))  # Windows has the first two


def prctl(option: int, value: int) -> None:
    """Call Linux's prctl; does nothing on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def take_name(name: str, folder: str | None, hosts_file: str | None = None) -> None:
    """Give this process and its children a host's name and files, in namespaces of their own.

    Args:
        name: Host name.
        folder: Folder that they have as ``/opt/ml``; None if there is none.
        hosts_file: File that they have as ``/etc/hosts``; None if that stays as it is.

    """
    libc = ctypes.CDLL(None, use_errno=True)
    kinds, user, group = _NEW_NAME | _NEW_MOUNTS, os.getuid(), os.getgid()
    if libc.unshare(kinds):  # a user may do so in a user namespace, with the same user and group
        if libc.unshare(kinds | _NEW_USER):
            raise OSError(ctypes.get_errno(), f"host name {name}: {os.strerror(ctypes.get_errno())}")
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as opened:
                opened.write(text)
    _mount("none", "/", _RECURSIVE | _PRIVATE)
    if hosts_file:
        _mount(hosts_file, "/etc/hosts", _BIND)
    socket.sethostname(name)
    put_in_place(folder)


def put_in_place(folder: str | None) -> None:
    """Let this process and its children have a host's folder as ``/opt/ml``, or say why not; in their own mounts."""
    if folder is None:
        return
    needed = (folder, os.getcwd(), sys.prefix, __file__)
    try:
        if inside := [path for path in needed if os.path.realpath(path).startswith(f"{_CONTAINERS}/")]:
            raise OSError(f"this machine's holds {inside[0]}")
        if not os.path.isdir(_CONTAINERS):
            _make_room(*os.path.split(_CONTAINERS))
        _mount(folder, _CONTAINERS, _BIND | _RECURSIVE)
    except OSError as error:
        os.write(2, f"lightning-sagemaker: {_CONTAINERS} is not the folder of this host, because {error}\n".encode())


def _make_room(parent: str, name: str) -> None:
    """Add an empty folder to another, which nobody else sees: what that holds is mounted again beside it."""
    held = os.open(parent, os.O_PATH | os.O_DIRECTORY)
    entries = os.listdir(parent)
    _mount("tmpfs", parent, 0, "tmpfs")
    try:
        for entry in entries:
            before, after = f"/proc/self/fd/{held}/{entry}", f"{parent}/{entry}"
            if os.path.islink(before):
                os.symlink(os.readlink(before), after)
                continue
            if os.path.isdir(before):
                os.mkdir(after)
            else:
                open(after, "w").close()
            _mount(before, after, _BIND | _RECURSIVE)
        os.mkdir(f"{parent}/{name}")
    except OSError:
        ctypes.CDLL(None).umount2(parent.encode(), 2)  # MNT_DETACH
        raise
    finally:
        os.close(held)


def _mount(source: str, target: str, flags: int, kind: str | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(
        source.encode(), target.encode(), None if kind is None else kind.encode(), ctypes.c_ulong(flags), None
    ):
        raise OSError(ctypes.get_errno(), f"mount {target}: {os.strerror(ctypes.get_errno())}")


def children_of(pid: int) -> list[int]:
    """Process IDs of the children of ``pid``; empty without /proc."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for task in tasks:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
            found += [int(word) for word in file.read().split()]
    return found


def kill_descendants() -> None:
    """Kill all descendants of this process, including orphans that it inherited as a subreaper."""
    while True:
        todo, below = [os.getpid()], []
        while todo:
            found = children_of(todo.pop())
            todo += found
            below += found
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0)[0]:
                pass
        if not below:
            return


def supervise(command: list[str], environment: dict[str, str], grace: float | None = None) -> int:
    """Run ``command`` until it or this process's parent ends; return its ``waitpid`` status.

    Signals are forwarded. If ``grace`` is set, the program is killed that many seconds after SIGTERM or SIGINT.
    """
    parent, asked_to_end = os.getppid(), [float("inf")]

    def pass_on(number: int, _frame: object) -> None:
        _signal(child, number)
        if number in (signal.SIGTERM, signal.SIGINT):
            asked_to_end[0] = min(asked_to_end[0], time.monotonic())

    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child == 0:
        _become(command, environment)
    for number in FORWARDED:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        outlasted = grace is not None and time.monotonic() - asked_to_end[0] > grace
        if outlasted or os.getppid() != parent:
            _signal(child, signal.SIGKILL)
        _reap_orphans(child)
        time.sleep(POLL)


def run_program(command: list[str], environment: dict[str, str], folder: str, grace: float | None = None) -> int:
    """:func:`supervise` a child of this process, or follow a fork of the preload server if it can run the command."""
    if command[0] == sys.executable and (command[1] == "-m" or command[1].endswith(".py")):
        server = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            server.connect(os.path.join(folder, PRELOAD))
            socket.send_fds(server, [b"+"], [0, 1, 2])
            umask = os.umask(0)
            os.umask(umask)
            ignored = [int(number) for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN]
            request = {"command": command, "environment": environment, "cwd": os.getcwd(), "umask": umask}
            request["ignored"] = ignored  # a child of this process would ignore these too
            server.sendall(json.dumps(request).encode() + b"\n")
            if server.recv(1):  # after the server has imported; empty if it exits before
                return _follow(server, grace)
    return supervise(command, environment, grace)


def _follow(server: socket.socket, grace: float | None) -> int:
    """As :func:`supervise`, for a fork: signals are sent to the server, which reports the ``waitpid`` status."""
    parent, asked_to_end = os.getppid(), [float("inf")]

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            server.send(bytes([number]))
        if number in (signal.SIGTERM, signal.SIGINT):
            asked_to_end[0] = min(asked_to_end[0], time.monotonic())

    for number in FORWARDED:
        signal.signal(number, pass_on)
    server.settimeout(FORK_POLL)
    while True:
        try:
            status = server.recv(4)
            return int.from_bytes(status, "little") if status else signal.SIGKILL
        except TimeoutError:
            pass
        except OSError:
            return signal.SIGKILL
        outlasted = grace is not None and time.monotonic() - asked_to_end[0] > grace
        if outlasted or os.getppid() != parent:
            pass_on(signal.SIGKILL, None)
        _reap_orphans(0)


def _become(command: list[str], environment: dict[str, str]) -> None:
    os.setpgid(0, 0)  # a launcher signals this process's group; the child gets the signal once, from here
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        os.write(2, f"the program {command[0]!r} cannot be started: {error.strerror}\n".encode())
        os._exit(127)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap_orphans(child: int) -> None:
    for pid in children_of(os.getpid()):
        if pid != child:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def exit_code(status: int) -> int:
    """The exit code of a ``waitpid`` status as in a shell: 128 + N after signal N."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run as a host or a rank; return the exit code of the program."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("role", choices=("host", "rank"))
    parser.add_argument("--grace", type=float, help="seconds between SIGTERM and SIGKILL, for a host")
    parser.add_argument("--hostname", help="name of the host")
    parser.add_argument("--folder", help="the simulator's folder: host-K.json, rank-R.out, control, preload")
    parser.add_argument("--processes-per-host", type=int)
    parser.add_argument("--node-rank", type=int, help="host without a launcher: its one process is its only rank")
    parser.add_argument("--restore-hosts", action="store_true")
    split = sys.argv.index("--")
    arguments, command = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    if arguments.role == "host":
        hosts_file = os.path.join(arguments.folder, NAMES_FILE)
        if arguments.hostname is not None and os.path.exists(hosts_file):
            take_name(arguments.hostname, os.environ.get(BASE), hosts_file)
        elif arguments.hostname is not None:
            socket.sethostname(arguments.hostname)  # in the namespaces of its network
            put_in_place(os.environ.get(BASE))
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        status = run_program(command, dict(os.environ), arguments.folder, arguments.grace)
        kill_descendants()
        return exit_code(status)
    return _run_rank(arguments, command)


def _run_rank(arguments: argparse.Namespace, command: list[str]) -> int:
    environment = dict(os.environ)
    plain = arguments.node_rank is not None
    rank = arguments.node_rank if plain else int(environment.get("RANK", environment.get("OMPI_COMM_WORLD_RANK", "")))
    node_rank = rank if plain else rank // arguments.processes_per_host
    if arguments.restore_hosts:
        environment = _restore_host(environment, arguments.folder, rank, node_rank, arguments.processes_per_host)
    stream = os.open(os.path.join(arguments.folder, f"rank-{rank}.out"), os.O_WRONLY)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.close(stream)
    code = exit_code(run_program(command, environment, arguments.folder))
    report = json.dumps({"rank": rank, "node_rank": node_rank, "code": code}) + "\n"
    control = os.open(os.path.join(arguments.folder, "control"), os.O_WRONLY)
    os.write(control, report.encode())  # shorter than PIPE_BUF, so it is atomic
    os.close(control)
    return code


def _restore_host(
    environment: dict[str, str], folder: str, rank: int, node_rank: int, processes_per_host: int
) -> dict[str, str]:
    """Set what a single mpirun on one machine cannot: the rank's local rank, and its host's name and variables."""
    with open(os.path.join(folder, f"host-{node_rank}.json")) as file:
        of_host = json.load(file)
    if os.path.exists(os.path.join(folder, NAMES_FILE)):  # mpirun has started it on the first host
        take_name(of_host["PMIX_HOSTNAME"], of_host[BASE])
    if "OMPI_VERSION" in environment:  # Open MPI 5 finds a rank's neighbors by its own name of their machine
        of_host.pop("PMIX_HOSTNAME", None)
    environment |= of_host
    local_rank = rank % processes_per_host
    restored = {
        "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": processes_per_host,
        "OMPI_COMM_WORLD_NODE_RANK": local_rank,
    }
    if environment.pop("LIGHTNING_SAGEMAKER_SMDDPRUN", ""):  # AWS's smddprun gives each rank these four
        size = int(environment["OMPI_COMM_WORLD_SIZE"])
        restored |= {
            "RANK": rank,
            "LOCAL_RANK": local_rank,
            "WORLD_SIZE": size,
            "SMDATAPARALLEL_LOCAL_RANK": local_rank,
        }
    return environment | {name: str(value) for name, value in restored.items()}


if __name__ == "__main__":
    sys.exit(main())
