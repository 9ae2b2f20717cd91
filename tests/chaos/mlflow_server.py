# SPDX-License-Identifier: Apache-2.0
"""A real MLflow server on this machine, and a line to it that can be cut."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

PACKAGES = Path(__file__).parents[2] / ".containers" / "mlflow"
"""MLflow and what it needs beside this environment's packages; `make test` brings it."""


def environment() -> dict[str, str]:
    """Variables of a process that has MLflow."""
    return {**os.environ, "PYTHONPATH": str(PACKAGES), "OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}


class Server:
    """``mlflow server`` with a database in a folder."""

    def __init__(self, folder: Path) -> None:
        self.address = f"http://127.0.0.1:{_free_port()}"
        self._log = (folder / "server.log").open("w")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/runs.db"),
                *("--artifacts-destination", str(folder / "artifacts"), "--workers", "1"),
                *("--host", "127.0.0.1", "--port", self.address.rpartition(":")[2]),
            ],
            env={**environment(), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            cwd=folder,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self, seconds: float = 600.0) -> Server:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.address}/health", timeout=5).close()
                return self
            time.sleep(0.2)
        raise RuntimeError(Path(self._log.name).read_text()[-2000:])

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        self._log.close()


class Line:
    """A port that leads to a server.

    ``mode`` is ``up``, ``down`` (connections are closed), ``silent`` (nothing is passed on) or ``deaf`` (requests arrive,
    answers do not).
    """

    def __init__(self, address: str) -> None:
        self.mode = "up"
        self._target = ("127.0.0.1", int(address.rpartition(":")[2]))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                if self.mode == "down":
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                for one, other, is_answer in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass, args=(one, other, is_answer), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if self.mode == "silent":
                    continue
                if self.mode == "down" or (self.mode == "deaf" and is_answer):
                    break
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
