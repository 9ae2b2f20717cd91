# SPDX-License-Identifier: Apache-2.0
"""A rank's connection to the coordinator: requests from the training thread, notices and heartbeats in others."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable
from logging import DEBUG

from lightning_sagemaker.recovery import protocol_log, wire
from lightning_sagemaker.recovery.protocol_log import log

_HEARTBEAT_SECONDS = 1.0


class RecoveryError(RuntimeError):
    """Training cannot continue in this job."""


class CoordinatorClient:
    """A rank's connection to its coordinator.

    A process whose connection has ended, or whose coordinator has been silent for the timeout, no longer is a rank
    of the job: it may have been replaced, so it exits at once.

    Args:
        address: ``host:port`` of the coordinator.
        token: Token that the coordinator expects.
        rank: This process's rank in the job.
        info: Information for the other ranks, such as the address of its store.
        on_change: Called in another thread as soon as a rank of the quorum is lost.

    """

    def __init__(self, address: str, token: str, rank: int, info: wire.Info, on_change: Callable[[], None]) -> None:
        host, _, port = address.rpartition(":")
        self._connection = socket.create_connection((host.strip("[]"), int(port)), timeout=30)
        self._connection.settimeout(None)
        wire.keep_alive(self._connection)
        self.rank = rank
        self._on_change = on_change
        self._numbers = itertools.count(1)
        self._replies: queue.SimpleQueue[wire.Reply | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._has_finished = False
        self.quorum = 0
        self._changed = 0
        protocol_log.switch_on()
        hello: wire.Hello = {"token": token, "rank": rank, "info": info}
        wire.send(self._connection, hello)
        os.register_at_fork(after_in_child=self._forget)
        for target in (self._listen, self._send_heartbeats):
            threading.Thread(target=target, name="recovery", daemon=True).start()

    @property
    def changed(self) -> bool:
        """Whether a rank of the current quorum has been lost."""
        return self._changed >= self.quorum > 0

    def start(self) -> wire.Reply:
        """Wait until all ranks have started; returns at once if the others are already training."""
        return self._begin(self._request_and_wait(wire.Start()))

    def next_quorum(self, at: list[int] | None, admits: bool = True) -> wire.Reply:
        """Wait until all remaining ranks have requested the next quorum.

        Args:
            at: This rank's training position; None if it has no state.
            admits: Whether replacements that have arrived take part; else they wait for the next quorum.

        """
        return self._begin(self._request_and_wait(wire.NextQuorum(at, admits)))

    def commit(self, step: int, ok: bool) -> wire.Reply:
        """Vote on a step and wait for the decision: it is committed if all ranks of the quorum vote ``ok``."""
        return self.decision(self.vote(step, ok))

    def vote(self, step: int, ok: bool, weights: int | None = None) -> int:
        """As :meth:`commit`, without waiting; returns an id for :meth:`decision`, which must be the next request."""
        return self._request(wire.Commit(self.quorum, step, ok, weights))

    def decision(self, vote: int) -> wire.Reply:
        """Wait for the decision on a vote."""
        return self._wait_for_reply(vote)

    def wait_for_all(self, collective: str) -> None:
        """Report that steps call a collective which needs all ranks: the step in flight is discarded, later ones wait."""
        self._send(wire.NeedAllRanks(self.quorum, collective))

    def leave_for_restarts(self) -> None:
        """Wait until all ranks of the quorum have called this: they exit and are restarted, and none counts as lost."""
        self._request_and_wait(wire.LeaveForRestart())

    def report(self, step: int) -> None:
        """Report a completed step, for ranks that do not vote."""
        self._send(wire.StepDone(step))

    @property
    def has_finished(self) -> bool:
        """Whether the first fit has ended."""
        return self._has_finished

    def finish(self) -> None:
        """Report the end of the first fit. Later code needs a coordinator only if it trains again."""
        self._has_finished = True
        self._request_and_wait(wire.Finish())

    def close(self) -> None:
        """Close the connection; the coordinator considers this rank lost, unless it has left."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _begin(self, reply: wire.Reply) -> wire.Reply:
        self.quorum = reply.get("quorum", self.quorum)
        return reply

    def _request_and_wait(self, request: wire.Request) -> wire.Reply:
        return self._wait_for_reply(self._request(request))

    def _request(self, request: wire.Request) -> int:
        number = next(self._numbers)
        self._send(request, number)
        return number

    def _wait_for_reply(self, number: int) -> wire.Reply:
        while True:
            reply = self._replies.get()
            if reply is None:
                self._replies.put(None)  # for the next caller, too
                raise RecoveryError(
                    "The first host's supervisor has exited, and fit needs it. HINT: start the job again."
                )
            if reply["id"] == number:
                if log.isEnabledFor(DEBUG):
                    log.debug("rank %d receives reply %d: %s", self.rank, number, protocol_log.summary_of(reply))
                return reply

    def _send(self, request: wire.Request, number: int = 0) -> None:
        if not isinstance(request, wire.Heartbeat):
            log.debug("rank %d sends request %d: %s", self.rank, number, request)
        try:
            with self._sending:
                wire.send(self._connection, wire.request_message(request, number))
        except OSError:
            self._end()

    def _listen(self) -> None:
        while (message := wire.receive(self._connection)) is not None:
            match wire.answer_of(message):
                case wire.Heartbeat():
                    pass
                case wire.Welcome(silence) as notice:
                    log.debug("rank %d receives notice: %s", self.rank, notice)
                    self._connection.settimeout(silence)
                case wire.QuorumBroken(quorum) as notice:
                    log.debug("rank %d receives notice: %s", self.rank, notice)
                    self._changed = max(self._changed, quorum)
                    self._on_change()
                case reply:
                    self._replies.put(reply)
        self._end()

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(_HEARTBEAT_SECONDS):
            self._send(wire.Heartbeat())

    def _end(self) -> None:
        if self._closed.is_set():
            return
        if self._has_finished:
            self._closed.set()
            self._replies.put(None)
            return
        sys.stderr.write(
            f"lightning-sagemaker: rank {self.rank} has lost its coordinator and exits: the others consider it dead.\n"
        )
        sys.stderr.flush()
        os._exit(1)

    def _forget(self) -> None:
        """Close the connection in a forked process, whose copy would keep it open when this rank dies."""
        self._connection.close()
