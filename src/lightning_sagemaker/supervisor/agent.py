# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of one host and replaces those that die, until the training has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from lightning_sagemaker.recovery import wire
from lightning_sagemaker.supervisor.forking import Template, report
from lightning_sagemaker.supervisor.link import Training
from lightning_sagemaker.supervisor.rank_ends import WITH_ANOTHER, Action, RankEnd, decide

_POLL = 0.02
_TO_LEAVE = 30.0
"""Seconds that leaving ranks have to end their step before they are killed."""
_GRACE = 150.0
"""Seconds from SIGTERM to SIGKILL for the ranks: SageMaker gives 120."""
_GAVE_UP = 1


@dataclass
class Rank:
    """A rank of this host: its current process and its replacements.

    Attributes:
        number: Global rank.
        environment: Variables of the process.
        pid: Id of the current process; None if there is none.
        code: Exit code of the last process.
        deaths: Step -> number of deaths.
        is_killed: Whether it was killed for the coordinator, which counts the step's failure itself.
        cannot_recover: Whether it was restarted because its script cannot recover in the job; this happens once.

    """

    number: int
    environment: dict[str, str]
    pid: int | None = None
    code: int | None = None
    deaths: Counter[int] = field(default_factory=Counter)
    is_killed: bool = False
    cannot_recover: bool = False


class Agent:
    """Supervises the ranks of one host.

    Args:
        command: Command line of each rank, starting with the interpreter.
        ranks: The ranks of this host.
        training: The coordinator on the job's first host; a connection to it on the others.
        max_restarts: Maximum replacements per rank.
        preload: Whether ranks are forked from a process that has imported torch and Lightning.

    """

    def __init__(
        self,
        command: Sequence[str],
        ranks: Sequence[Rank],
        training: Training,
        max_restarts: int = 100,
        preload: bool = True,
    ) -> None:
        self._command, self._ranks, self._training = list(command), list(ranks), training
        self._max_restarts = max_restarts
        self._template = Template(self._command) if preload else None
        if self._template is not None and not self._template.is_alive:
            self._template = None
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._due: list[Rank] = []
        self._stopped: float | None = None
        self._leaves: float | None = None
        self._has_said_it = False
        self._signal = 0
        self._gave_up = False
        self._failed_later: list[int] = []

    def run(self) -> int:
        """Run until all ranks have exited for good.

        Returns:
            0 if the training completed, 128 + the signal's number if a signal ended it, else a rank's exit code.

        """
        with self._handling_signals():
            try:
                self._run()
            finally:
                self._kill_all()
                if self._template is not None:
                    self._template.close()
        return self._exit_code()

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._stop,
            signal.SIGUSR1: self._forward,
            signal.SIGUSR2: self._leave,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self) -> None:
        for rank in self._ranks:
            self._start(rank)
        while self._due or any(rank.pid is not None for rank in self._ranks):
            for pid, code in self._ended():
                for rank in [one for one in self._ranks if one.pid == pid]:
                    self._note_end(rank, pid, code)
            self._start_due_ones()
            self._end_if_it_cannot_begin_again()
            self._report_leaving()
            self._end_late_ones()

    def _exit_code(self) -> int:
        codes = [rank.code for rank in self._ranks]
        if self._signal:
            return 128 + self._signal
        if self._leaves is not None:
            return 0
        if 0 in codes and not self._failed_later:
            return 0
        failed = self._failed_later or [code for code in codes if code]
        if self._training.together:
            failed = [code for code in failed if code != wire.RESTART]
        failed.sort(key=lambda code: code < 0)  # an exit code is more informative than a signal
        return next((code if code > 0 else 128 - code for code in failed), _GAVE_UP)

    def kill(self, number: int) -> None:
        """Kill a rank that is frozen, or whose replica of the model has lost another rank. Thread-safe."""
        for rank in self._ranks:
            if rank.number == number and rank.pid is not None:
                rank.is_killed = True
                with suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)

    def _start(self, rank: Rank) -> None:
        rank.is_killed = False
        if self._template is not None:
            with suppress(OSError, RuntimeError):
                rank.pid = self._template.start(rank.number, rank.environment)
                return
            self._template = None
        process = subprocess.Popen(
            self._command, env=rank.environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._processes[process.pid], rank.pid = process, process.pid

    def _ended(self) -> list[tuple[int, int]]:
        found = [] if self._template is None else self._template.ended(_POLL)
        if self._template is None or not self._template.is_alive:  # processes forked from it die with it
            self._template = None
            pids = [rank.pid for rank in self._ranks if rank.pid is not None and rank.pid not in self._processes]
            found += [(pid, -signal.SIGKILL) for pid in pids if pid not in dict(found)]
        if not found and self._template is None:
            time.sleep(_POLL)
        for pid, process in list(self._processes.items()):
            if (code := process.poll()) is not None:
                del self._processes[pid]
                found.append((pid, code))
        return found

    def _note_end(self, rank: Rank, pid: int, code: int) -> None:
        rank.pid, rank.code = None, code
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # its loader workers have inherited its connections
        if code == 0 or self._signal or self._gave_up or self._leaves is not None:
            return
        if code == wire.CANNOT and not rank.cannot_recover:
            rank.cannot_recover = True
            for one in self._ranks:
                one.environment[wire.MODE] = "restart"
            self._start(rank)
            return
        self._training.lose(rank.number)
        end = self._end_of(rank, code)
        decision = decide(end)
        if decision.sentence:
            report(decision.sentence)
        if end.finished and code > 0:  # if a rank was killed, the exit codes of the others decide
            self._failed_later.append(code)
        if decision.death is not None:
            rank.deaths[decision.death] += 1
        if decision.action is Action.START:
            self._start(rank)
        elif decision.action is Action.START_LATER:
            self._due.append(rank)
        elif decision.action is Action.END_JOB:
            self._training.give_up()
            self._give_up()
        elif decision.action is Action.END_HOST:
            self._give_up()

    def _end_of(self, rank: Rank, code: int) -> RankEnd:
        """Describe the end of a rank's process, for :func:`.rank_ends.decide`."""
        training = self._training
        return RankEnd(
            rank.number,
            code,
            step=training.step,
            has_started=training.has_started,
            finished=training.finished,
            ended=training.ended,
            is_reachable=training.is_reachable,
            together=training.together,
            replica=training.replica,
            max_restarts=self._max_restarts,
            deaths=rank.deaths,
            is_killed=rank.is_killed,
            is_only_one=self._left_out() == [rank],
            has_followed=any(one.deaths[WITH_ANOTHER] for one in self._ranks),
        )

    def _left_out(self) -> list[Rank]:
        """Ranks that have exited with an error and will not be replaced."""
        return [one for one in self._ranks if one.pid is None and one.code and one not in self._due]

    def _end_if_it_cannot_begin_again(self) -> None:
        """End the job if all ranks are lost and one is not replaced: the others would wait for it."""
        training = self._training
        is_lost = training.has_started and not (training.trains or training.finished or training.ended)
        if self._left_out() and is_lost and not (self._signal or self._gave_up) and training.is_reachable:
            report("all ranks are lost, and one of this host is not replaced: the job ends.")
            training.give_up()
            self._give_up()

    def _give_up(self) -> None:
        self._gave_up = True
        self._kill_all()

    def _start_due_ones(self) -> None:
        """Restart ranks that were lost in a network failure, once the network has recovered."""
        training = self._training
        if not self._due or not (training.is_reachable or training.is_gone or self._signal):
            return
        due, self._due = self._due, []
        if training.is_gone:
            numbers = ", ".join(str(rank.number) for rank in due)
            report(f"the coordinator is gone; not replacing rank {numbers}. HINT: start the job again.")
        elif not (training.finished or training.ended or self._signal):
            for rank in due:
                self._start(rank)

    def _stop(self, number: int, _: object) -> None:
        self._signal = self._signal or number
        self._stopped = self._stopped or time.monotonic()
        self._training.is_stopping = True
        self._forward(number, None)

    def _forward(self, number: int, _: object) -> None:
        for rank in self._ranks:
            if rank.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(rank.pid, number)

    def _leave(self, *_: object) -> None:
        self._leaves = self._leaves or time.monotonic()

    def _report_leaving(self) -> None:
        if self._leaves is None or self._has_said_it:
            return
        self._has_said_it = True
        self._due.clear()
        report("this host leaves the job after the current step.")
        self._training.leave([rank.number for rank in self._ranks])

    def _end_late_ones(self) -> None:
        now = time.monotonic()
        if self._stopped is not None and now - self._stopped > _GRACE:
            self._kill_all()
        if self._leaves is not None and now - self._leaves > _TO_LEAVE:
            self._kill_all()

    def _kill_all(self) -> None:
        for rank in self._ranks:
            if rank.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(rank.pid, signal.SIGKILL)
