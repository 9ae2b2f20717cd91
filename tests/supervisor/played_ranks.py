# SPDX-License-Identifier: Apache-2.0
"""Ranks of a coordinator that are played by threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lightning_sagemaker.recovery.coordinator_client import CoordinatorClient
from lightning_sagemaker.supervisor.coordinator import Coordinator
from lightning_sagemaker.supervisor.ranks import Settings


class Ranks:
    """Of one coordinator; each asks in a thread of its own."""

    def __init__(self, replica: int = 1, **settings: Any) -> None:
        self._replica = replica
        self.silent: list[int] = []
        self.coordinator = Coordinator(Settings(**settings), "word", self.silent.append, host="127.0.0.1")
        self.clients: dict[int, CoordinatorClient] = {}
        self.notices: dict[int, threading.Event] = {}
        self._pool = ThreadPoolExecutor(16)

    def join(self, rank: int) -> CoordinatorClient:
        """A process of this rank."""
        notice = self.notices[rank] = threading.Event()
        address = f"127.0.0.1:{self.coordinator.port}"
        info = {"host": "h", "rank": rank, "replica": self._replica}
        self.clients[rank] = CoordinatorClient(address, "word", rank, info, notice.set)
        if self._replica > 1:  # a process that the coordinator gives up ends itself
            vars(self.clients[rank])["_end"] = lambda: None
        return self.clients[rank]

    def ask(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """A question whose answer may take a while."""
        return self._pool.submit(call, *arguments)

    def start(self, *ranks: int) -> list[dict[str, Any]]:
        """All of them start; what each is told."""
        return [one.result(5) for one in [self.ask(self.join(rank).start) for rank in ranks]]

    def commit(self, step: int, *ranks: int, ok: bool = True) -> list[bool]:
        """All of them vote for a step."""
        asked = [self.ask(self.clients[rank].commit, step, ok) for rank in ranks]
        return [one.result(5)["commit"] for one in asked]

    def quorum(self, at: list[int] | None, *ranks: int) -> list[dict[str, Any]]:
        """All of them ask for a quorum."""
        return [one.result(5) for one in [self.ask(self.clients[rank].next_quorum, at) for rank in ranks]]

    def coordinator_hears_of(self, rank: int) -> bool:
        """Wait until one asks to be of a quorum: who asks next is answered accordingly."""
        deadline = time.monotonic() + 5
        while not self.coordinator._records[rank].asks_quorum and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.coordinator._records[rank].asks_quorum

    def finish(self, *ranks: int) -> None:
        """All of them say that their first fit is over."""
        for asked in [self.ask(self.clients[rank].finish) for rank in ranks]:
            asked.result(5)

    def close(self) -> None:
        """End all."""
        for client in self.clients.values():
            client.close()
        self.coordinator.close()
        self._pool.shutdown(wait=False)
