# SPDX-License-Identifier: Apache-2.0
"""Runs the command that starts the training processes: forwards its output and signals, records why it failed.

As :mod:`lightning_driver`: standard library only, Python 3.6.
"""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_sagemaker.container.lightning_reasons import excerpt, reason
    from lightning_sagemaker.container.lightning_redaction import redacted
else:  # in a container the files are in one folder
    from lightning_reasons import excerpt, reason
    from lightning_redaction import redacted

GRACE = 115.0
"""Seconds from SIGTERM to SIGKILL. SageMaker itself kills after 120."""

SHOWN = 1024
"""Number of characters of the failure file that SageMaker shows."""

_SIMULATED = bool(os.environ.get("LIGHTNING_SAGEMAKER_SIMULATED"))
_BASE = os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
_RANK_VARIABLES = (b"RANK=", b"OMPI_COMM_WORLD_RANK=")
_SUPERVISE = re.compile(rb"(^|/|\0)lightning[-_]sagemaker(\.cli)?\0supervise\0")


def log(text: str) -> None:
    """Print a line that is distinguishable from the program's."""
    print("lightning-sagemaker: " + text, flush=True)


class Supervisor:
    """Runs a command: its output is forwarded, signals are forwarded to the training processes, a failure is recorded."""

    def __init__(self, command: "list[str]") -> None:
        self._tail = deque(maxlen=400)  # type: deque[str]
        self._signaled = 0.0
        self._child = None  # type: subprocess.Popen[bytes] | None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._forward)
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self) -> int:
        """Wait for the command; the exit code is its own, and 143 if it ended because of SIGTERM."""
        child = self._child
        assert child is not None
        pump = threading.Thread(target=self._pump, args=(child,), daemon=True)
        pump.start()
        if self._signaled:  # before the child was started
            self._send(signal.SIGTERM)
        while child.poll() is None:
            time.sleep(0.05)
            if self._signaled and time.time() - self._signaled > GRACE:
                log(f"the training processes are still running {GRACE:.0f} s after SIGTERM: killing them")
                self._send(signal.SIGKILL)
                child.kill()
        pump.join(10.0)
        code = int(child.returncode)
        code = 128 - code if code < 0 else code
        facts = {
            "exit_code": code,
            "largest_process_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
        }
        log("exit code {exit_code}; the largest process had {largest_process_mib} MiB".format(**facts))
        if _SIMULATED:
            with open(os.path.join(_BASE, "driver.json"), "w") as file:
                json.dump(facts, file)
        if self._signaled:
            return 128 + signal.SIGTERM if code else 0
        if code:
            lines = list(self._tail)
            write_failure(reason(code, lines, facts["largest_process_mib"]), excerpt(lines))
        return code

    def _pump(self, child: "subprocess.Popen[bytes]") -> None:
        for line in child.stdout or ():
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            self._tail.append(line.decode(errors="replace").rstrip("\n"))

    def _forward(self, number: int, _frame: object) -> None:
        if number == signal.SIGTERM and not self._signaled:
            self._signaled = time.time()
            log(f"SIGTERM: forwarded to the training processes, which have {GRACE:.0f} s")
        self._send(number)

    def _send(self, number: int) -> None:
        launcher = [] if self._child is None else [self._child.pid]
        for pid in training_processes(os.getpid()) or launcher:
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def training_processes(top: int) -> "list[int]":
    """Ids of the ranks below process ``top``, without their launcher, whose grace period is short, and their children.

    ``lightning-sagemaker supervise`` receives the signal instead of its ranks, as a rank that exits is replaced.
    """
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    ranks = {pid for pid in parents if is_rank(pid)}

    def ancestors(pid: int) -> "Iterator[int]":
        while pid in parents and pid != top:
            pid = parents[pid]
            yield pid

    below = [pid for pid in ranks if pid != top and top in ancestors(pid)]
    return [pid for pid in below if not ranks.intersection(ancestors(pid)) - {top}]


def is_rank(pid: int) -> bool:
    """Whether a process was started as a rank, or manages ranks."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            started = any(entry.startswith(_RANK_VARIABLES) for entry in file.read().split(b"\0"))
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return started or _SUPERVISE.search(file.read()) is not None
    except OSError:
        return False


def write_failure(message: str, lines: "list[str]") -> None:
    """Record why the job failed, unless the program has written a better reason itself.

    Args:
        message: One sentence.
        lines: The last output of the program.

    """
    path = os.path.join(_BASE, "output", "failure")
    if os.path.exists(path) and os.path.getsize(path):
        return
    text = redacted("\n".join([message[:SHOWN], *lines]) + "\n", os.environ)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w") as file:
        file.write(text)
    os.rename(temporary, path)
