# SPDX-License-Identifier: Apache-2.0
"""The process that a host's ranks are forked from, as their supervisor sees it; its own side is ``template.py``."""

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
        command: What each rank runs; the interpreter first.

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
            say(f"each rank imports by itself, because importing started {threads - 1} thread(s).")
            self.close()

    @property
    def is_alive(self) -> bool:
        """Whether it can be forked."""
        return self._process.poll() is None

    def start(self, rank: int, environment: dict[str, str]) -> int:
        """Fork.

        Args:
            rank: Number of the rank.
            environment: Variables of the new process.

        Returns:
            Its id.

        Raises:
            RuntimeError: If there is nothing left to fork.

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
            seconds: Time to wait for one.

        """
        self._read(seconds)
        found = [(line["ended"], line["code"]) for line in self._lines if "ended" in line]
        self._lines = [line for line in self._lines if "ended" not in line]
        return found

    def close(self) -> None:
        """End it, and what it has forked."""
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


def say(sentence: str) -> None:
    """Log a sentence."""
    sys.stderr.write(f"lightning-sagemaker: {sentence}\n")
    sys.stderr.flush()
