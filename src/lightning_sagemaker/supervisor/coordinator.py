# SPDX-License-Identifier: Apache-2.0
"""Decides which ranks take part, and whether a step is committed, in one place, so that no two ranks can disagree.

A *quorum* is the set of ranks that train together. They vote on each step once its gradients are reduced; it is committed if
all vote for it. A rank is lost when its connection ends (the kernel closes it with the process), when its supervisor
reports its exit, or when it sends no heartbeat for too long (it is frozen, or its network is cut). Then the current step is
discarded, and the other ranks are notified and form the next quorum with the replacements that have arrived by then.

The coordinator runs in the supervisor of the first host, not in a rank, since any rank may die.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from lightning_sagemaker.recovery import protocol_log, wire
from lightning_sagemaker.recovery.replica_ranks import complete, replica_of
from lightning_sagemaker.supervisor.events import logged, no_notes
from lightning_sagemaker.supervisor.failures import Failures
from lightning_sagemaker.supervisor.hosts import Hosts
from lightning_sagemaker.supervisor.progress import Progress
from lightning_sagemaker.supervisor.ranks import (
    RankRecord,
    Settings,
    Waiting,
    answer_left_over,
    candidates_of,
    join_of,
    quorum_of,
    release,
    step_of,
)
from lightning_sagemaker.supervisor.reception import Reception
from lightning_sagemaker.supervisor.step_notes import StepNotes

_TICK = 0.1
_OTHERS_END = 150.0
"""Seconds to wait for the other hosts' ranks to exit: SageMaker gives 120."""


class Coordinator(Progress):
    """Serves the ranks of one job until it is closed.

    Args:
        settings: The job's requirements for quorums.
        token: Token that ranks and supervisors must send.
        on_silent: Called with a rank of this host to be killed, as it is frozen or its replica of the model has lost a rank;
            other hosts kill their own.
        report: Called with a log message.
        note: Called with the name of an event and its values, for the event log.

    """

    def __init__(
        self,
        settings: Settings,
        token: str,
        on_silent: Callable[[int], None] = lambda _: None,
        report: Callable[[str], None] = lambda _: None,
        host: str = "",
        port: int = 0,
        note: Callable[..., None] = no_notes,
    ) -> None:
        super().__init__()
        protocol_log.switch_on()
        self._settings, self._on_silent, self._report, self._note = settings, on_silent, report, logged(note)
        self._steps, self._waiting, self._is_waiting = StepNotes(self._note), Waiting(), False
        self._lock, self._closed, self._failures = threading.RLock(), threading.Event(), Failures()
        self._records, self._votes = dict[int, RankRecord](), dict[int, tuple[int, int | None]]()
        self._left, self._leaving = set[int](), set[int]()
        self._broken_at: float | None = None
        self._hosts = Hosts(settings.silence, self.status, self.lose, self._stop, self.leave, self.give_up)
        self._note("start", world_size=settings.world_size)
        self._reception = Reception(host, port, settings.world_size, token, self._serve, self._hosts.serve)
        self.port = self._reception.port
        threading.Thread(target=self._tick, name="coordinator", daemon=True).start()

    def close(self) -> None:
        """Stop after the ranks of this host have exited, once those of the other hosts have too."""
        deadline = time.monotonic() + _OTHERS_END
        while self.has_started and self._hosts.have_ranks and (self.trains or time.monotonic() < deadline):
            time.sleep(_TICK)
        self._closed.set()
        self._note("close", step=self.step, finished=self.finished)
        self._reception.close()
        self._hosts.close()
        with self._lock:
            for record in list(self._records.values()):
                record.connection.close()

    def lose(self, rank: int) -> None:
        """Record that a rank has exited, as reported by its supervisor."""
        with self._lock:
            record = self._records.get(rank)
            if record is not None:
                self._drop(record)
            if rank in self._left:  # it failed after its first fit; the others may be in another one
                self._break()

    def give_up(self) -> None:
        """End the job, as a rank that the others need is not restarted."""
        with self._lock:
            self.ended = True
            self._form_first()

    def leave(self, ranks: Collection[int]) -> None:
        """Release ranks by plan, at the end of a step, so that no work is repeated.

        Args:
            ranks: Ranks of a host that leaves the job. They stay if no rank would be left; incomplete replicas stay, too.

        """
        with self._lock:
            ranks = complete(ranks, self.replica)
            if self._active and not set(self._active) - self._leaving - set(ranks):
                self._report("a host was asked to leave but stays: it is the only one training.")
                return
            self._leaving |= set(ranks)
            self._dismiss()

    def _dismiss(self) -> None:
        """Send leaving ranks that are waiting a message to exit; the others form the next quorum."""
        for rank in sorted(self._leaving & self._records.keys()):
            record = self._records[rank]
            if not (record.is_starting or record.asks_quorum):
                continue
            if rank in self._active:
                self._active.remove(rank)
                self._report(f"rank {rank} leaves after step {self.step}; {len(self._active)} continue.")
                self._note("left", rank=rank, step=self.step)
            del self._records[rank]
            self._leaving.discard(rank)
            record.answer({"kind": wire.Kind.LEAVE})

    def _stop(self) -> None:
        self.is_stopping = True

    def _serve(self, connection: socket.socket, hello: dict[str, Any]) -> None:
        """Serve a rank until its connection ends."""
        rank, info = int(hello["rank"]), cast(wire.Info, hello["info"])
        self._hosts.is_replaced(rank)
        record = RankRecord(rank, connection, info, time.monotonic())
        with self._lock:
            if (old := self._records.get(record.rank)) is not None:
                self._drop(old)
            self._records[record.rank] = record
            self.together, self.replica = info.get("together", False), info.get("replica", 1)
        record.send(wire.notice_message(wire.Welcome(self._settings.silence)))
        while (message := wire.receive(connection)) is not None:
            with self._lock:
                record.last_heartbeat = time.monotonic()
                if self._records.get(record.rank) is record:
                    self._answer(record, *wire.request_of(message))
        with self._lock:
            if self._records.get(record.rank) is record:
                self._drop(record)

    def _answer(self, record: RankRecord, number: int, request: wire.Request) -> None:
        match request:
            case wire.Start() | wire.NextQuorum() | wire.LeaveForRestart():
                record.request, record.request_id = request, number
                (self._form_first if record.is_starting else self._form)()
            case wire.Commit():
                self._vote(record, number, request)
            case wire.StepDone(step) if step > self.step:
                self.step = step
                self._steps.counted(self.step, len(self._active))
            case wire.NeedAllRanks(self.quorum, collective):
                self._settings.need_all(collective, self._report)
                self._break(fails=False)
            case wire.Finish():
                self._finish(record, number)
            case wire.Heartbeat():
                record.send(wire.notice_message(request))

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            with self._lock:
                now = time.monotonic()
                for record in list(self._records.values()):
                    # After its training a script may hold the GIL for long, so silence is allowed then.
                    if now - record.last_heartbeat > self._settings.silence and not self.finished:
                        self._report(f"rank {record.rank} has sent no heartbeat for {self._settings.silence:g} s.")
                        self._kill(record)
                self._form()

    def _form_first(self) -> None:
        """Form the first quorum once all ranks have arrived; ranks that arrive later join as replacements."""
        waiting = {rank: record for rank, record in self._records.items() if record.is_starting}
        able, over = complete(waiting, self.replica), self._over
        if over or self._active:
            for rank in waiting if over else able:
                mates = [waiting[mate] for mate in replica_of(rank, self.replica) if mate in waiting]
                waiting[rank].answer(over or join_of(mates, self._records, self._active))
        elif len(able) >= (self._settings.world_size if self.together else self._settings.fewest):
            self._begin([waiting[rank] for rank in able], wire.Kind.FIRST)

    @property
    def _over(self) -> wire.Reply | None:
        """Response to a rank that arrives after the end; None before."""
        return {"kind": wire.Kind.OVER, "code": int(not self.finished)} if self.finished or self.ended else None

    def _form(self) -> None:
        """Form the next quorum once all training ranks have requested it and no replacement is awaited any more."""
        self._active, self.quorum = release(self._records, self._active, self.quorum)
        answer_left_over(self._records, self._active, self._over)
        if not self._active or self._waiting.for_others(self._records, self._active):
            return
        candidates = candidates_of(self._records, self._active, self.replica)
        self._dismiss()
        candidates = [record for record in candidates if record.rank in self._records]
        training = [record for record in candidates if record.rank in self._active]
        if not all(record.admits for record in training):  # replacements join after an evaluation
            self._begin(training, wire.Kind.QUORUM)
        elif not self._waits_for_more(len(candidates)):
            self._begin(candidates, wire.Kind.QUORUM, self._end_with(candidates))

    def _waits_for_more(self, present: int) -> bool:
        """Whether ``present`` ranks wait for replacements of the others; the event is logged once."""
        waited = math.inf if self._broken_at is None else time.monotonic() - self._broken_at
        waits = present < self._settings.world_size and waited < self._settings.patience_of(present)
        if waits and not self._is_waiting:
            self._is_waiting = True
            self._note("waiting", step=self.step, left=present)
        return waits

    def _end_with(self, records: Sequence[RankRecord]) -> wire.End | None:
        """Why the job ends with these ranks; None if it continues."""
        if len(records) < self._settings.minimum:
            return self._settings.too_few(len(records))
        end = self._failures.too_many(step_of(records, self.step), self._settings.attempts)
        if end is not None:
            self._report(f"step {end['step'] + 1} has failed {end['failures']} times: the job ends.")
        return end

    def _begin(self, records: Sequence[RankRecord], kind: wire.Kind, end: wire.End | None = None) -> None:
        self.quorum += 1
        self._failures.settle(step_of(records, self.step) if kind is wire.Kind.QUORUM else None)
        self.ended = end is not None
        records = sorted(records, key=lambda record: (record.joined or self.quorum, record.rank))
        self._active = [record.rank for record in records]
        self._votes, self._left, self._broken_at, self._is_waiting = {}, set(), None, False
        self._steps.is_first = True
        self._note("quorum", number=self.quorum, step=self.step, ranks=self._active)
        if end is not None:
            self._note("end", **end)
        reply: wire.Reply = {**quorum_of(records), "kind": kind, "quorum": self.quorum, "step": self.step, "end": end}
        for record in records:
            record.joined = record.joined or self.quorum
            record.answer(reply)

    def _vote(self, record: RankRecord, number: int, vote: wire.Commit) -> None:
        if vote.quorum != self.quorum or self._broken_at is not None or record.rank not in self._active:
            record.send({"id": number, "commit": False})
            return
        self._votes[record.rank] = number, vote.weights
        if not vote.ok:
            self._break()
        elif len(self._votes) == len(self._active):
            self.step = vote.step
            arrived = complete([rank for rank, one in self._records.items() if one.asks_quorum], self.replica)
            joins = bool(arrived or self._leaving.intersection(self._active))
            sums = {weights for _, weights in self._votes.values() if weights is not None}
            self._decide({"commit": True, "change": joins, "differ": len(sums) > 1})
            if not self.finished:
                self._steps.counted(self.step, len(self._active))
                if joins:
                    self._note("joining", step=self.step)

    def _decide(self, decision: wire.Reply) -> None:
        votes, self._votes = self._votes, {}
        for rank, (number, _) in votes.items():
            if rank in self._records:
                self._records[rank].send({**decision, "id": number})

    def _break(self, *, fails: bool = True) -> None:
        """Discard the step in flight and notify the training ranks."""
        if self._broken_at is None:
            self._broken_at = time.monotonic()
            self._failures.discard(fails=fails)
        self._decide({"commit": False})
        for rank in self._active:
            self._records[rank].send(wire.notice_message(wire.QuorumBroken(self.quorum)))

    def _drop(self, record: RankRecord) -> None:
        self._records.pop(record.rank, None)
        self._leaving.discard(record.rank)
        with contextlib.suppress(OSError):
            record.connection.shutdown(socket.SHUT_RDWR)
        record.connection.close()
        if record.rank in self._active:
            self._active.remove(record.rank)
            self._votes.pop(record.rank, None)
            if self.finished:  # its script may just have ended; ranks that wait for its vote must not wait on
                self._left.add(record.rank)
                if self._votes:
                    self._break()
            elif not self.is_stopping:
                self._failures.lose(record.rank)
                self._note("lost", rank=record.rank, step=self.step, since=round(self._steps.last, 3))
                others = "all restart" if self.together else f"{len(self._active)} continue"
                self._report(f"rank {record.rank} is lost after step {self.step}; {others}.")
                self._break()
                if self.together:
                    self._active, self._broken_at = [], None
        if not (record.is_starting or self.finished or self.is_stopping):
            for rank in replica_of(record.rank, self.replica):  # the other ranks of its replica
                if (mate := self._records.get(rank)) is not None and not mate.is_starting:
                    self._kill(mate)
        self._form()

    def _kill(self, record: RankRecord) -> None:
        self._drop(record)
        self._on_silent(record.rank)
        self._hosts.kill(record.rank)

    def _finish(self, record: RankRecord, number: int) -> None:
        """Record the end of the first fit: replacements can no longer join, but the ranks may train again."""
        if not self.finished:
            self._note("finished", step=self.step)
        self.finished = True
        record.send({"id": number})
        self._form_first()
        self._form()
