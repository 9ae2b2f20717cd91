# SPDX-License-Identifier: Apache-2.0
"""The supervisor's side of the process that a host's ranks are forked from; ``template.py`` is that process."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

_START = "import sys; from lightning_sagemaker.supervisor import template; template.main(sys.argv[1:])"
_GROUPS = "torch,transformers,torchmetrics,lightning"


class Template:
    """The process that is forked for each rank.

    Args:
        command: Command line of each rank, starting with the interpreter.

    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._output = os.dup(1)
        self._process = subprocess.Popen(
            [command[0], "-c", _START, _GROUPS, *command, *[" " * 64] * 4],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._output],
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # a thread that is started by an import cannot be forked
        )
        self._lines: list[dict[str, int]] = []
        self._rest = b""
        if (threads := self._answer("ready")["ready"]) > 1:
            report(f"each rank imports by itself, because importing started {threads - 1} thread(s).")
            self.close()

    @property
    def is_alive(self) -> bool:
        """Whether the process is running, so that it can be forked."""
        return self._process.poll() is None

    def start(self, rank: int, environment: dict[str, str]) -> int:
        """Fork a process for a rank.

        Args:
            rank: Number of the rank.
            environment: Variables of the new process.

        Returns:
            The process id.

        Raises:
            RuntimeError: If the process to fork has exited.

        """
        request = {
            "rank": rank,
            "environment": environment,
            "cwd": os.getcwd(),
            "command": self._command,
            "stdout": self._output,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer("started")["pid"]

    def ended(self, seconds: float) -> list[tuple[int, int]]:
        """Processes that have ended, and their exit codes.

        Args:
            seconds: Maximum seconds to wait for one.

        """
        self._read(seconds)
        found = [(line["ended"], line["code"]) for line in self._lines if "ended" in line]
        self._lines = [line for line in self._lines if "ended" not in line]
        return found

    def close(self) -> None:
        """Kill the process and those that were forked from it."""
        with suppress(OSError):
            self._process.kill()
        self._process.wait()

    def _answer(self, name: str) -> dict[str, int]:
        while True:
            for line in self._lines:
                if name in line:
                    self._lines.remove(line)
                    return line
            if not self._read(None):
                raise RuntimeError("the process that ranks are forked from has exited. HINT: use --no-preload.")

    def _read(self, seconds: float | None) -> bool:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not ready:
            return True
        part = os.read(self._process.stdout.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + part).split(b"\n")
        self._lines += [json.loads(line) for line in lines]
        if not part:
            time.sleep(seconds or 0)
        return bool(part)


def report(sentence: str) -> None:
    """Write a log line to standard error."""
    sys.stderr.write(f"lightning-sagemaker: {sentence}\n")
    sys.stderr.flush()
