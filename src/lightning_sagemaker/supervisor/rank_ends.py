# SPDX-License-Identifier: Apache-2.0
"""Decides, when a rank's process has exited with an error, whether it is replaced and whether the job continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lightning_sagemaker.recovery import wire

WITH_ANOTHER = -1
"""Key in place of a step: the rank was restarted because another one was lost."""
_WITHOUT_PROGRESS = 3
"""Maximum deaths of a rank after the same committed step."""


class Action(Enum):
    """Action of the supervisor."""

    START = "a replacement is started"
    START_LATER = "a replacement is started once the coordinator is reachable"
    LEAVE_OUT = "the others continue without it"
    END_HOST = "the ranks of this host end"
    END_JOB = "the ranks of all hosts end"


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank's process, and the state of the job at that time.

    Attributes:
        rank: Global rank.
        code: Exit code, not 0; negative for a signal.
        step: Number of committed steps.
        has_started: Whether all ranks have joined.
        finished: Whether the first fit has ended.
        ended: Whether the ranks have received the message to exit, with a checkpoint.
        is_reachable: Whether a replacement can take part.
        together: Whether all ranks are restarted when one is lost.
        replica: Number of ranks that share a replica of the model.
        max_restarts: Maximum number of replacements.
        deaths: Step -> number of earlier deaths after it.
        is_killed: Whether it was killed for the coordinator.
        is_only_one: Whether no other rank of this host has exited with an error without a replacement.
        has_followed: Whether a rank of this host was restarted because another was lost.

    """

    rank: int
    code: int
    step: int = 0
    has_started: bool = True
    finished: bool = False
    ended: bool = False
    is_reachable: bool = True
    together: bool = False
    replica: int = 1
    max_restarts: int = 100
    deaths: Mapping[int, int] = field(default_factory=dict)
    is_killed: bool = False
    is_only_one: bool = True
    has_followed: bool = False

    @property
    def follows(self) -> bool:
        """Whether it has exited in order to be restarted, because another rank was lost."""
        has_part = self.together or self.replica > 1
        return self.code == wire.RESTART and (has_part or not self.step)


@dataclass(frozen=True)
class Decision:
    """What the supervisor does about the end of a rank.

    Attributes:
        action: Action to take.
        sentence: Log line; may be empty.
        death: Step, or :data:`WITH_ANOTHER`, that the death is counted for; None if it is not counted.

    """

    action: Action
    sentence: str = ""
    death: int | None = None


def decide(end: RankEnd) -> Decision:
    """Decide what to do about the end of a rank's process."""
    ended = f"rank {end.rank} ended with {f'signal {-end.code}' if end.code < 0 else f'exit code {end.code}'}"
    if end.finished:
        return Decision(Action.LEAVE_OUT, f"{ended} after the first fit, and is not replaced.")
    if end.ended:
        return Decision(Action.LEAVE_OUT)
    if not end.is_reachable:
        return Decision(Action.START_LATER, f"{ended}; restarting it once the coordinator is reachable.")
    death = WITH_ANOTHER if end.follows or end.is_killed else end.step
    deaths = Counter(end.deaths)
    deaths[death] += 1
    action, sentence = _replaced(end, ended, deaths)
    is_restarted = not end.step and (end.replica > 1 or end.has_followed or death == WITH_ANOTHER)
    if action is not Action.START and (end.together or is_restarted):  # the others would wait for it
        action = Action.END_JOB
    return Decision(action, sentence, death)


def _replaced(end: RankEnd, ended: str, deaths: Mapping[int, int]) -> tuple[Action, str]:
    """Whether the rank is replaced, and the log line; ``deaths`` include this one."""
    if sum(deaths.values()) > end.max_restarts:
        return Action.LEAVE_OUT, f"{ended}, and is not replaced: --max-restarts is {end.max_restarts}."
    if end.follows and (end.step or end.is_only_one):
        return Action.START, ""
    if end.code > 0 and not end.step:  # the script is wrong; before the start the others would wait for it
        action = Action.LEAVE_OUT if end.has_started else Action.END_HOST
        return action, f"{ended} before the first step, and is not replaced."
    if deaths.get(end.step, 0) >= _WITHOUT_PROGRESS:
        died = f"it died {deaths[end.step]} times after step {end.step}"
        return Action.LEAVE_OUT, f"{ended}, and is not replaced: {died}."
    return Action.START, f"{ended}; starting a replacement."
