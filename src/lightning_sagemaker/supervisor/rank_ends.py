# SPDX-License-Identifier: Apache-2.0
"""What follows when a rank's process has exited with an error: whether it is replaced, and whether the job goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lightning_sagemaker.recovery import wire

WITH_ANOTHER = -1
"""In place of a step: the rank was restarted because another was lost."""
_WITHOUT_PROGRESS = 3
"""Times that a rank is replaced without a committed step."""


class Action(Enum):
    """What its supervisor does."""

    START = "a replacement is started"
    START_LATER = "a replacement is started once the coordinator is reachable"
    LEAVE_OUT = "the others go on without it"
    END_HOST = "the ranks of this host end"
    END_JOB = "the ranks of all hosts end"


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank's process, and how far the job was.

    Attributes:
        rank: Its rank.
        code: Its exit code, which is not 0; negative: a signal.
        step: Committed steps.
        has_started: Whether all ranks have joined.
        finished: Whether the first fit has ended.
        ended: Whether the ranks were told to exit, with a checkpoint.
        is_reachable: Whether a replacement can take part.
        together: Whether all ranks are restarted when one is lost.
        replica: Ranks that have a replica of the model together.
        max_restarts: How often it may be replaced.
        deaths: Its earlier ends: how many after which step.
        is_killed: Whether the coordinator has had it killed.
        is_only_one: Whether no other rank of this host has exited with an error and been left out.
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
        """Whether it has exited because another was lost, to be restarted."""
        has_part = self.together or self.replica > 1
        return self.code == wire.RESTART and (has_part or not self.step)


@dataclass(frozen=True)
class Decision:
    """What follows.

    Attributes:
        action: What is done.
        sentence: What is logged; may be empty.
        death: Where the end is counted: after this step, or :data:`WITH_ANOTHER`; None if it is not.

    """

    action: Action
    sentence: str = ""
    death: int | None = None


def decide(end: RankEnd) -> Decision:
    """What follows the end of a rank's process."""
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
    """Whether it is replaced, and what is logged; ``deaths`` include this one."""
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
