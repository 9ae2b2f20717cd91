# SPDX-License-Identifier: Apache-2.0
"""Jobs of :mod:`.recovery` on several hosts, which are network namespaces, and faults that only hosts have.

A host's network is cut where its cable ends, at the switch: it keeps its addresses, and no one is told.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lightning_sagemaker.simulator import network

KINDS = (
    "kill a remote rank",
    "freeze a remote rank",
    "kill a host",
    "cut and heal",
    "cut during recovery",
    "slow network",
    "kill the first",
)
SILENCE = 5.0
"""Seconds, of ``supervise --silence``."""
_PORT = 29400
_SLOW = "400kbit"
"""A step of these small jobs sums some 7 kB."""


@contextlib.contextmanager
def hosts(number: int) -> Iterator[network.Network]:
    """That many hosts, ``algo-1`` the first."""
    with network.network([f"algo-{index + 1}" for index in range(number)], None) as net:
        yield net


class HostedJob:
    """A job on several hosts.

    Args:
        net: The hosts.
        folder: Where its ranks leave their pids, and outputs go (``output-K.txt``).
        per_host: Ranks of each.
        options: Of ``supervise``.
        command: What each rank runs.
        replicas: Of the model; None: as many as ranks.

    """

    def __init__(
        self,
        net: network.Network,
        folder: Path,
        per_host: int,
        options: Sequence[str],
        command: Sequence[str],
        replicas: int | None = None,
    ) -> None:
        self._net, self._folder, self._per_host = net, folder, per_host
        self._replicas = replicas or len(net.spaces) * per_host
        self._options, self._command = list(options), list(command)
        self._first = subprocess.run(
            net.enter("algo-1", ["ip", "-4", "-o", "address", "show", net.interface]), check=True, capture_output=True
        )
        self._address = self._first.stdout.decode().split("inet ")[1].split("/")[0]
        self.supervisors = [self._start(host) for host in range(len(net.spaces))]

    def _start(self, host: int) -> subprocess.Popen[bytes]:
        supervise = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--processes", str(self._per_host)]
        supervise += ["--hosts", str(len(self._net.spaces)), "--host-rank", str(host)]
        supervise += ["--coordinator", f"{self._address}:{_PORT}", "--silence", str(SILENCE), *self._options]
        command = self._net.enter(f"algo-{host + 1}", [*supervise, *self._command])
        with (self._folder / f"output-{host}.txt").open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

    def poll(self) -> int | None:
        """As of a process: the first code that is not 0 when all hosts have ended."""
        codes = [supervisor.poll() for supervisor in self.supervisors]
        return None if None in codes else next((code for code in codes if code), 0)

    @property
    def output(self) -> str:
        """What all hosts have printed last."""
        return "\n".join(path.read_text()[-8000:] for path in sorted(self._folder.glob("output-*.txt")))

    def ranks_of(self, host: int) -> range:
        """Their numbers."""
        return range(host * self._per_host, (host + 1) * self._per_host)

    def kill_host(self, host: int) -> None:
        """All of its processes at once; the kernel tells the others, unless the network is cut."""
        self.supervisors[host].kill()
        for rank in self.ranks_of(host):
            self.signal(rank, signal.SIGKILL)
        self.supervisors[host].wait()

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(int((self._folder / f"pid-{rank}").read_text()), number)

    def link(self, host: int, state: str) -> None:
        """Cut a host's network (``down``), or heal it (``up``)."""
        subprocess.run(
            ["ip", "-n", self._switch, "link", "set", f"port{host + 1}", state], check=True, capture_output=True
        )

    def slow_down(self, host: int, seconds: float) -> None:
        """Let little through a host's link for a while."""
        space = self._net.spaces[f"algo-{host + 1}"]
        where = ["tc", "-n", space, "qdisc"]
        device = ["dev", self._net.interface, "root"]
        shape = ["tbf", "rate", _SLOW, "burst", "4kb", "latency", "2s"]
        subprocess.run([*where, "add", *device, *shape], check=True, capture_output=True)
        time.sleep(seconds)
        subprocess.run([*where, "del", *device], check=True, capture_output=True)

    @property
    def _switch(self) -> str:
        return next(iter(self._net.spaces.values())).rpartition("-")[0] + "-switch"

    def inflict(self, kind: str, rng: random.Random, steps: Callable[[], int]) -> None:
        """One fault.

        Of two replicas, one that is cut off while the other recovers takes the state with it: it is only cut then.

        Args:
            kind: Of :data:`KINDS`.
            rng: Chooses the host and its rank.
            steps: How many the job has made; a cut lasts until the others go on.

        """
        host = rng.randrange(1, len(self.supervisors))
        rank = rng.choice(self.ranks_of(host))
        if kind == "kill a remote rank":
            self.signal(rank, signal.SIGKILL)
        elif kind == "kill the first":
            self.signal(0, signal.SIGKILL)
        elif kind == "freeze a remote rank":
            self.signal(rank, signal.SIGSTOP)
        elif kind == "kill a host":
            self.kill_host(host)
            time.sleep(rng.uniform(0.1, 2.0))
            self.supervisors[host] = self._start(host)
        elif kind == "slow network":
            self.slow_down(host, rng.uniform(2, 4))
        else:
            if kind == "cut during recovery" and self._replicas > 2:
                self.signal(rng.choice(self.ranks_of(0)), signal.SIGKILL)
                time.sleep(rng.uniform(0, 0.6))
            self.link(host, "down")
            deadline = time.monotonic() + 4 * SILENCE
            time.sleep(1.0)  # a step may have been under way
            before = steps()
            while steps() < before + 3 and time.monotonic() < deadline:
                time.sleep(0.1)
            time.sleep(rng.uniform(0, 2))
            self.link(host, "up")

    def kill(self) -> None:
        """End it all."""
        for host, supervisor in enumerate(self.supervisors):
            if supervisor.poll() is None:
                self.kill_host(host)
