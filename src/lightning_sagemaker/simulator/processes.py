# SPDX-License-Identifier: Apache-2.0
"""Run the processes of several hosts as one job: prefixed live output, end at the first failure, no process left."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lightning_sagemaker.simulator.display import Lines, Source
from lightning_sagemaker.simulator.streams import Failure, Stream, last_traceback

RUN_VARIABLE = "LIGHTNING_SAGEMAKER_LOCAL_RUN"
"""Environment variable that marks every process of a simulated job, also after its parents have exited."""

GRACE = 4.0
"""Seconds from SIGTERM to SIGKILL when a job is stopped."""

LAUNCHER_GRACE = 1.5
"""Seconds that a launcher has to exit by itself after one of its ranks has failed."""

_TIMED_OUT = 124  # as of coreutils' timeout
_STOPPED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM))
"""Exit codes of programs that SIGINT or SIGTERM has stopped."""


class Job:
    """The hosts and ranks of one run, and the loop that watches them.

    Args:
        folder: The simulator's folder, with the pipes ``control`` and ``rank-R.out`` of ``host_init.py``.
        display: Display for the lines.
        logs: Folder for a log file of each launcher and rank; None for no log files.

    """

    def __init__(self, folder: Path, display: Lines, logs: Path | None = None) -> None:
        self.folder = folder
        self._display, self._logs = display, logs
        self.run_id = f"{os.getpid()}-{time.time_ns()}"
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._streams: dict[str | int, Stream] = {}
        self._rank_hosts: dict[int, str] = {}
        self._ended: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._control = b""
        self._received: list[int] = []
        self._failure: Failure | None = None
        self._dismissed: set[int] = set()
        self._leaving: set[int] = set()

    def add_rank(self, rank: int, host: str) -> None:
        """Create the output stream of a rank; call it before :meth:`start`."""
        self._rank_hosts[rank] = host
        self._streams[rank] = Stream(Source(host, rank), self._display, self._logs)
        self._selector.register(_make_pipe(self.folder / f"rank-{rank}.out"), selectors.EVENT_READ, rank)

    def start(self, host: str, command: Sequence[str], environment: dict[str, str], cwd: Path) -> None:
        """Start a first process of ``host`` in a new session."""
        if not self._processes:
            self._selector.register(_make_pipe(self.folder / "control"), selectors.EVENT_READ, "control")
        self._processes.append((host, self._spawn(host, command, environment, cwd)))

    def is_running(self, host: str) -> bool:
        """Whether a first process of ``host`` is running."""
        return any(name == host and process.poll() is None for name, process in self._processes)

    def is_over(self) -> bool:
        """Whether a first process that was not asked to leave has ended without a failure, so training has."""
        return any(process.poll() == 0 and process.pid not in self._leaving for _, process in self._processes)

    def ask_to_leave(self, host: str) -> None:
        """Send ``host`` the signal that makes it leave the job; a host without a handler yet is ended by it."""
        for name, process in self._processes:
            if name == host and process.poll() is None:
                self._leaving.add(process.pid)
                process.send_signal(signal.SIGUSR2)

    def dismiss(self, host: str) -> None:
        """Kill a host; its exit code is not a failure of the job."""
        for name, process in self._processes:
            if name == host and process.poll() is None:
                self._dismissed.add(process.pid)
                process.kill()

    def help(
        self, name: str, command: Sequence[str], environment: dict[str, str], cwd: Path, inherited: socket.socket
    ) -> None:
        """Start a helper process, which is killed when the hosts have ended."""
        self._helpers.append(self._spawn(name, command, environment, cwd, inherited.fileno()))

    def _spawn(
        self, name: str, command: Sequence[str], environment: dict[str, str], cwd: Path, *inherited: int
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            env={**environment, RUN_VARIABLE: self.run_id},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=inherited,
        )
        if name not in self._streams:
            self._streams[name] = Stream(Source(name), self._display, self._logs)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, name)
        return process

    def wait(self, timeout: float | None = None, tick: Callable[[], None] | None = None) -> Failure | None:
        """Wait until every host has ended; stop all of them at the first failure, signal or after ``timeout`` seconds.

        Args:
            timeout: Time limit in seconds; None for no limit.
            tick: Called in each iteration, for example to start further hosts.

        Returns:
            None if every host ended with exit code 0, else the first failure.

        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            with self._signals():
                running = True
                while running and self._failure is None:
                    running = bool(self._running())  # before the last read, so that no failure is missed
                    self._pump(0.05)
                    if tick is not None and running:
                        tick()
                    self._notice_host_failures()
                    if self._failure is None:
                        self._failure = self._stopped(timeout, deadline)
                self._end()
        finally:
            self._kill_everything()
            self._drain()
            self._selector.close()
        return self._with_last_lines(self._failure)

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for _, process in self._processes if process.poll() is None]

    def _pump(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            self._read(key)
        self._display.tick()

    def _read(self, key: selectors.SelectorKey) -> bool:
        try:
            data = os.read(key.fd, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(key.fileobj)
        elif key.data == "control":
            self._control += data
            *reports, self._control = self._control.split(b"\n")
            for report in reports:
                self._notice_rank(json.loads(report))
        else:
            self._streams[key.data].feed(data)
        return bool(data)

    def _notice_rank(self, report: dict[str, int]) -> None:
        rank, code = report["rank"], report["code"]
        host = self._rank_hosts[rank]
        self._ended[rank] = code
        codes = [self._ended.get(other) for other, place in self._rank_hosts.items() if place == host]
        if None not in codes and self._failure is None:
            self._display.state(host, "failed" if any(codes) else "finished")
        if code and self._failure is None:
            self._fail(Failure(host, rank, code, (), f"rank {rank} failed with exit code {code}"))

    def _fail(self, failure: Failure) -> None:
        self._failure = failure
        assert failure.host is not None
        if failure.returncode in _STOPPED:
            return  # a signal stopped it; the others still print what they save
        self._display.state(failure.host, "failed")
        self._display.fail()

    def _notice_host_failures(self) -> None:
        if any(process.poll() for _, process in self._processes):
            self._pump(0)  # a rank that failed has reported before its launcher ended
        for host, process in self._processes:
            code = process.poll()
            if code and self._failure is None and process.pid not in self._dismissed:
                code = 128 - code if code < 0 else code
                if code == 128 + signal.SIGUSR2 and process.pid in self._leaving:
                    continue
                self._fail(Failure(host, None, code, (), f"the launcher failed with exit code {code}"))

    def _stopped(self, timeout: float | None, deadline: float | None) -> Failure | None:
        if self._received:
            number = self._received[0]
            return Failure(None, None, 128 + number, (), f"stopped by {signal.Signals(number).name}")
        if deadline is not None and time.monotonic() > deadline:
            return Failure(None, None, _TIMED_OUT, (), f"stopped after {timeout:g} s")
        return None

    def _end(self) -> None:
        """Give launchers time to react to a rank's failure; then SIGTERM, and SIGKILL after ``GRACE`` seconds."""
        failure = self._failure
        if failure is not None and failure.rank is not None:
            self._pump_while_running(LAUNCHER_GRACE, only=failure.host)
        for process in self._running():
            process.send_signal(signal.SIGTERM)
        self._pump_while_running(GRACE + 1)

    def _pump_while_running(self, seconds: float, only: str | None = None) -> None:
        deadline = time.monotonic() + seconds
        watched = [process for host, process in self._processes if only in (None, host)]
        signals_seen = len(self._received)
        while time.monotonic() < deadline and any(process.poll() is None for process in watched):
            self._pump(0.05)
            if len(self._received) > max(signals_seen, 1):
                return  # a second signal: do not wait any longer

    def _kill_everything(self) -> None:
        for process in (*self._running(), *self._helpers):
            process.kill()
        for _ in range(50):
            strays = list(_processes_of(self.run_id))
            for pid in strays:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not strays:
                break
            time.sleep(0.05)
        for process in (*(process for _, process in self._processes), *self._helpers):
            process.wait()

    def _drain(self) -> None:
        for key in list(self._selector.get_map().values()):
            while self._read(key):
                pass
            if key.fd in self._selector.get_map():
                self._selector.unregister(key.fileobj)
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
            else:
                key.fileobj.close()  # type: ignore[attr-defined]
        for stream in self._streams.values():
            stream.end()

    def _with_last_lines(self, failure: Failure | None) -> Failure | None:
        if failure is None or failure.host is None:
            return failure
        lines = list(self._streams[failure.host if failure.rank is None else failure.rank].recent)
        return replace(failure, last_lines=last_traceback(lines))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # Python handles signals in the main thread only
            return
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        previous = {n: signal.signal(n, lambda received, _frame: self._received.append(received)) for n in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _make_pipe(path: Path) -> int:
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)  # opened for writing too, so that the pipe never reaches its end


def _processes_of(run_id: str) -> Iterator[int]:
    """Process IDs of processes with the mark of this run; none without /proc."""
    mark = f"{RUN_VARIABLE}={run_id}".encode()
    for entry in os.listdir("/proc") if sys.platform == "linux" else ():
        if entry.isdigit():
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()[0]
                if state != b"Z" and mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    yield int(entry)
