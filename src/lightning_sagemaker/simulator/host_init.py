# SPDX-License-Identifier: Apache-2.0
"""The first process of a simulated host, and of each of its ranks: run by path, with the standard library only.

``host_init.py host`` stands for a container's first process: when its program ends, or the simulator is gone, nothing
of the host survives. ``host_init.py rank`` sits between the launcher (torchrun, mpirun) and the user's program: it
gives the rank an output stream of its own, so that lines never mix, restores what mpirun would say on separate hosts,
and reports how the rank ended before the launcher reacts to it.
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
"""Seconds between two looks at the child and the parent."""

FORK_POLL = 0.5
"""The same for a child of the preload server, which reports its exit."""

PRELOAD = "preload"
"""The preload server's socket, in the simulator's own folder."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
FORWARDED = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))  # Windows has the first two


def prctl(option: int, value: int) -> None:
    """Linux's prctl; nothing elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """Process ids of the children of ``pid``; empty where there is no /proc."""
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
    """Kill every process below this one, orphans that it inherited as a subreaper included."""
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
    """Run ``command`` until it ends or this process's parent does; return what ``waitpid`` says of it.

    Signals are passed on; ``grace`` seconds after SIGTERM or SIGINT the program is killed, when that is set.
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
    """:func:`supervise` a child of this process or, where there is a preload server that can, a fork of that."""
    if command[0] == sys.executable and (command[1] == "-m" or command[1].endswith(".py")):
        server = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            server.connect(os.path.join(folder, PRELOAD))
            socket.send_fds(server, [b"+"], [0, 1, 2])
            umask = os.umask(0)
            os.umask(umask)
            ignored = [int(number) for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN]
            request = {"command": command, "environment": environment, "cwd": os.getcwd(), "umask": umask}
            request["ignored"] = ignored  # as a child of this process would, and not as the server does
            server.sendall(json.dumps(request).encode() + b"\n")
            if server.recv(1):  # once the server has imported; nothing when it ends without
                return _follow(server, grace)
    return supervise(command, environment, grace)


def _follow(server: socket.socket, grace: float | None) -> int:
    """As :func:`supervise`, of a fork: signals are sent to the server, which reports how it ended."""
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
    os.setpgid(0, 0)  # a launcher signals this process's group; the child hears of it once, from here
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
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
    """A shell's exit code for a ``waitpid`` status: 128 + N for a process that signal N ended."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run as a host or a rank; the exit code is the program's."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("role", choices=("host", "rank"))
    parser.add_argument("--grace", type=float, help="seconds between SIGTERM and SIGKILL, for a host")
    parser.add_argument("--hostname", help="network namespace of the host")
    parser.add_argument("--folder", help="the simulator's folder: host-K.json, rank-R.out, control, preload")
    parser.add_argument("--processes-per-host", type=int)
    parser.add_argument("--node-rank", type=int, help="host without a launcher: its one process is its only rank")
    parser.add_argument("--restore-hosts", action="store_true")
    split = sys.argv.index("--")
    arguments, command = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    if arguments.role == "host":
        if arguments.hostname is not None:
            socket.sethostname(arguments.hostname)
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
    """What one mpirun on one machine cannot say: this rank's place on its host, and that host's own variables."""
    with open(os.path.join(folder, f"host-{node_rank}.json")) as file:
        of_host = json.load(file)
    if "OMPI_VERSION" in environment:  # Open MPI 5 finds a rank's neighbours by the name that it gave their machine
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
