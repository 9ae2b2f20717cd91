# SPDX-License-Identifier: Apache-2.0
"""Jobs of :mod:`.recovery` whose ranks share this machine's GPU. Each is a host, for nccl takes a device once a host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.recovery_hosts import SILENCE, HostedJob


class OneGPU(HostedJob):
    """A job with one rank on each of its hosts, all of which are this machine.

    Args:
        folder: Where its ranks leave their pids, and outputs go (``output-K.txt``).
        ranks: As many hosts.
        options: Of ``supervise``.
        command: What each rank runs.

    """

    def __init__(self, folder: Path, ranks: int, options: Sequence[str], command: Sequence[str]) -> None:
        self._folder, self._per_host = folder, 1
        self._options, self._command = list(options), list(command)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
        self._hosts = ranks
        self.supervisors = [self._start(host) for host in range(ranks)]

    def _start(self, host: int) -> subprocess.Popen[bytes]:
        supervise = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--processes", "1"]
        supervise += ["--hosts", str(self._hosts), "--host-rank", str(host), "--coordinator", self._coordinator]
        supervise += ["--silence", str(SILENCE), *self._options]
        variables = {**os.environ, "NCCL_HOSTID": f"host-{host}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
        with (self._folder / f"output-{host}.txt").open("ab") as output:
            return subprocess.Popen(
                [*supervise, *self._command],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=variables,
            )
