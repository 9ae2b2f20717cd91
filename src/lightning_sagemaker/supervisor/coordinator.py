# SPDX-License-Identifier: Apache-2.0
"""Decides which ranks take part, and whether a step is committed, in one place, so that no two ranks can disagree.

A *quorum* is the set of ranks that train together. They vote on each step once its gradients are reduced: it is committed if
all of them have them. A rank is lost when its connection ends (the kernel closes it with the process), when its supervisor
reports it, or when it sends no heartbeat for too long (it is frozen, or its network is cut). Then the step in flight is
discarded, the others are notified, and form the next quorum with the replacements that have arrived by then.

It runs in the supervisor of the first host, which is not a rank: any rank may die.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from lightning_sagemaker.recovery import wire
from lightning_sagemaker.recovery.replica_ranks import complete, replica_of
from lightning_sagemaker.supervisor.events import no_notes
from lightning_sagemaker.supervisor.failures import Failures
from lightning_sagemaker.supervisor.hosts import Hosts
from lightning_sagemaker.supervisor.progress import Progress
from lightning_sagemaker.supervisor.ranks import Member, Settings, join_of, quorum_of, release, step_of
from lightning_sagemaker.supervisor.reception import Reception
from lightning_sagemaker.supervisor.step_notes import StepNotes

_TICK = 0.1
_OTHERS_END = 150.0
"""Seconds in which the other hosts' ranks may still exit: SageMaker gives 120."""


class Coordinator(Progress):
    """Serves the ranks of one job until it is closed.

    Args:
        settings: The job's requirements for quorums.
        token: Token that a rank must send.
        on_silent: Called with a rank of this host that must be killed, as it is frozen, or its replica has lost another one;
            other hosts kill their own.
        say: Called with a log message.
        note: Called with the name of an event and its values, for the job's file of them.

    """

    def __init__(
        self,
        settings: Settings,
        token: str,
        on_silent: Callable[[int], None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
        host: str = "",
        port: int = 0,
        note: Callable[..., None] = no_notes,
    ) -> None:
        super().__init__()
        self._settings, self._on_silent, self._say, self._note = settings, on_silent, say, note
        self._steps, self._is_waiting = StepNotes(note), False
        self._lock, self._closed, self._failures = threading.RLock(), threading.Event(), Failures()
        self._members, self._votes = dict[int, Member](), dict[int, int]()
        self._left, self._leaving = set[int](), set[int]()
        self._broken_at: float | None = None
        self._hosts = Hosts(settings.silence, self.status, self.lose, self._stop, self.leave, self.give_up)
        note("start", world_size=settings.world_size)
        self._reception = Reception(host, port, settings.world_size, token, self._serve, self._hosts.serve)
        self.port = self._reception.port
        threading.Thread(target=self._tick, name="coordinator", daemon=True).start()

    def close(self) -> None:
        """Stop, after the ranks of this host have exited. Serves those of other hosts until they have too."""
        deadline = time.monotonic() + _OTHERS_END
        while self.has_started and self._hosts.are_there and (self.trains or time.monotonic() < deadline):
            time.sleep(_TICK)
        self._closed.set()
        self._note("close", step=self.step, finished=self.finished)
        self._reception.close()
        self._hosts.close()
        with self._lock:
            for member in list(self._members.values()):
                member.connection.close()

    def lose(self, rank: int) -> None:
        """A rank's supervisor has seen it exit."""
        with self._lock:
            member = self._members.get(rank)
            if member is not None:
                self._drop(member)
            if rank in self._left:  # it has failed; the others may be in another fit
                self._break()

    def give_up(self) -> None:
        """A rank that the others cannot do without is not restarted: no rank is."""
        with self._lock:
            self.ended = True
            self._form_first()

    def leave(self, ranks: Collection[int]) -> None:
        """Release ranks, as planned, at the end of a step: no work is repeated.

        Args:
            ranks: Those of a host that leaves the job. If no rank would be left, or those of a part of a replica, they stay.

        """
        with self._lock:
            ranks = complete(ranks, self.replica)
            if self._active and not set(self._active) - self._leaving - set(ranks):
                self._say("a host was asked to leave but stays: it is the only one training.")
                return
            self._leaving |= set(ranks)
            self._dismiss()

    def _dismiss(self) -> None:
        """Tell leaving ranks that wait to exit; the others form the next quorum."""
        for rank in sorted(self._leaving & self._members.keys()):
            member = self._members[rank]
            if member.starting is None and member.asking is None:
                continue
            if rank in self._active:
                self._active.remove(rank)
                self._say(f"rank {rank} leaves after step {self.step}; {len(self._active)} continue.")
                self._note("left", rank=rank, step=self.step)
            del self._members[rank]
            self._leaving.discard(rank)
            self._reply(member, "asking" if member.starting is None else "starting", {"kind": "leave"})

    def _stop(self) -> None:
        self.is_stopping = True

    def _serve(self, connection: socket.socket, hello: dict[str, Any]) -> None:
        """Serve a rank until its connection ends."""
        self._hosts.is_replaced(int(hello["rank"]))
        member = Member(int(hello["rank"]), connection, hello["info"], time.monotonic())
        with self._lock:
            if (old := self._members.get(member.rank)) is not None:
                self._drop(old)
            self._members[member.rank] = member
            self.together, self.replica = bool(member.info.get("together")), int(member.info.get("replica", 1))
        member.tell({"silence": self._settings.silence})
        while (message := wire.receive(connection)) is not None:
            with self._lock:
                member.heard = time.monotonic()
                if self._members.get(member.rank) is member:
                    self._answer(member, message)
        with self._lock:
            if self._members.get(member.rank) is member:
                self._drop(member)

    def _answer(self, member: Member, message: dict[str, Any]) -> None:
        call = message["call"]
        if call == "start":
            member.starting = message["id"]
            self._form_first()
        elif call == "quorum":
            member.asking, member.at, member.admits = message["id"], message["at"], message["admits"]
            self._form()
        elif call == "commit":
            self._vote(member, message)
        elif call == "step":
            if int(message["step"]) > self.step:
                self.step = int(message["step"])
                self._steps.counted(self.step, len(self._active))
        elif call == "whole" and message["quorum"] == self.quorum:
            self._settings.need_all(message["collective"], self._say)
            self._break(fails=False)
        elif call == "cannot":
            member.cannot = message["id"]
            self._form()
        elif call == "finish":
            self._finish(member, message["id"])
        elif call == "sign":
            member.tell({"sign": True})  # or it would not notice that its network is cut

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            with self._lock:
                now = time.monotonic()
                for member in list(self._members.values()):
                    # What a script does after its training may take the interpreter for long.
                    if now - member.heard > self._settings.silence and not self.finished:
                        self._say(f"rank {member.rank} has sent no heartbeat for {self._settings.silence:g} s.")
                        self._kill(member)
                self._form()

    def _form_first(self) -> None:
        """All ranks start together; one that starts later, while others train, is a replacement."""
        waiting = {rank: member for rank, member in self._members.items() if member.starting is not None}
        able, over = complete(waiting, self.replica), self._over
        if over or self._active:
            for rank in waiting if over else able:
                mates = [waiting[mate] for mate in replica_of(rank, self.replica) if mate in waiting]
                self._reply(waiting[rank], "starting", over or join_of(mates, self._members, self._active))
        elif len(able) >= (self._settings.world_size if self.together else self._settings.fewest):
            self._begin([waiting[rank] for rank in able], "starting")

    @property
    def _over(self) -> dict[str, Any] | None:
        """Response to a rank that arrives too late."""
        return {"kind": "over", "code": int(not self.finished)} if self.finished or self.ended else None

    def _form(self) -> None:
        self._active, self.quorum = release(self._members, self._active, self.quorum)
        if over := self._over:
            for member in self._members.values():
                if member.asking is not None and member.rank not in self._active:
                    self._reply(member, "asking", over)
        asking = {rank: member for rank, member in self._members.items() if member.asking is not None}
        if not self._active:
            for member in asking.values():  # nobody is left who knows where the training is
                self._reply(member, "asking", over or {"kind": "alone"})
            return
        if any(rank not in asking for rank in self._active):
            return
        self._dismiss()
        able = {*self._active, *complete(asking, self.replica)}
        asking = {rank: member for rank, member in asking.items() if rank in self._members and rank in able}
        if not all(asking[rank].admits for rank in self._active):  # replacements join after an evaluation
            return self._begin([asking[rank] for rank in self._active], "asking")
        waited = math.inf if self._broken_at is None else time.monotonic() - self._broken_at
        too_few = len(asking) < self._settings.minimum
        patience = max(self._settings.rejoin_timeout, self._settings.patience if too_few else 0.0)
        if len(asking) < self._settings.world_size and waited < patience:
            if not self._is_waiting:
                self._is_waiting = True
                self._note("waiting", step=self.step, left=len(asking))
            return
        step, end = step_of(asking.values(), self.step), self._settings.too_few(len(asking)) if too_few else None
        failures, lost = self._failures.of(step)
        if not too_few and failures >= self._settings.attempts:
            end = {"why": "stuck", "step": step, "failures": failures, "lost": lost}
            self._say(f"step {step + 1} has failed {failures} times: the job ends.")
        self._begin(list(asking.values()), "asking", end)

    def _begin(self, members: list[Member], waiting: str, end: wire.End | None = None) -> None:
        self.quorum += 1
        self._failures.settle(step_of(members, self.step) if waiting == "asking" else None)
        self.ended = end is not None
        members = sorted(members, key=lambda member: (member.joined or self.quorum, member.rank))
        self._active = [member.rank for member in members]
        self._votes, self._left, self._broken_at, self._is_waiting = {}, set(), None, False
        self._steps.is_first = True
        self._note("quorum", number=self.quorum, step=self.step, ranks=self._active)
        if end is not None:
            self._note("end", **end)
        reply = {**quorum_of(members), "quorum": self.quorum, "step": self.step, "end": end}
        reply["kind"] = "first" if waiting == "starting" else "quorum"
        for member in members:
            member.joined = member.joined or self.quorum
            self._reply(member, waiting, reply)

    def _reply(self, member: Member, waiting: str, reply: dict[str, Any]) -> None:
        number = getattr(member, waiting)
        setattr(member, waiting, None)
        member.tell({"id": number, **reply})

    def _vote(self, member: Member, message: dict[str, Any]) -> None:
        if message["quorum"] != self.quorum or self._broken_at is not None or member.rank not in self._active:
            member.tell({"id": message["id"], "commit": False})
            return
        self._votes[member.rank] = message["id"]
        if not message["ok"]:
            self._break()
        elif len(self._votes) == len(self._active):
            self.step = message["step"]
            arrived = complete([rank for rank, one in self._members.items() if one.asking is not None], self.replica)
            joins = bool(arrived or self._leaving.intersection(self._active))
            self._decide({"commit": True, "change": joins})
            if not self.finished:
                self._steps.counted(self.step, len(self._active))
                if joins:
                    self._note("joining", step=self.step)

    def _decide(self, decision: dict[str, Any]) -> None:
        votes, self._votes = self._votes, {}
        for rank, number in votes.items():
            if rank in self._members:
                self._members[rank].tell({"id": number, **decision})

    def _break(self, *, fails: bool = True) -> None:
        """Discard the step in flight, and notify the others."""
        if self._broken_at is None:
            self._broken_at = time.monotonic()
            self._failures.discard(fails=fails)
        self._decide({"commit": False})
        for rank in self._active:
            self._members[rank].tell({"notice": "changed", "quorum": self.quorum})

    def _drop(self, member: Member) -> None:
        self._members.pop(member.rank, None)
        self._leaving.discard(member.rank)
        with contextlib.suppress(OSError):
            member.connection.shutdown(socket.SHUT_RDWR)
        member.connection.close()
        if member.rank in self._active:
            self._active.remove(member.rank)
            self._votes.pop(member.rank, None)
            if self.finished:  # its script may just be over; who waits for its vote must not
                self._left.add(member.rank)
                if self._votes:
                    self._break()
            elif not self.is_stopping:
                self._failures.lose(member.rank)
                self._note("lost", rank=member.rank, step=self.step, since=round(self._steps.last, 3))
                others = "all restart" if self.together else f"{len(self._active)} continue"
                self._say(f"rank {member.rank} is lost after step {self.step}; {others}.")
                self._break()
                if self.together:
                    self._active, self._broken_at = [], None
        if member.starting is None and not (self.finished or self.is_stopping):
            for rank in replica_of(member.rank, self.replica):  # the others that have shards of its replica
                if (mate := self._members.get(rank)) is not None and mate.starting is None:
                    self._kill(mate)
        self._form()

    def _kill(self, member: Member) -> None:
        self._drop(member)
        self._on_silent(member.rank)
        self._hosts.kill(member.rank)

    def _finish(self, member: Member, number: int) -> None:
        """The first fit has ended; a replacement could not join what follows, but the others may train again."""
        if not self.finished:
            self._note("finished", step=self.step)
        self.finished = True
        member.tell({"id": number})
        self._form_first()
        self._form()
