# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules: the order in which each rank runs its stages' microbatches.

Every order is simulated before it is used: that gives its duration, and shows that it does not deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """What is computed."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    """The part of a backward pass that the previous stage waits for."""
    WEIGHT = "W"
    """The rest of the backward pass."""


@dataclass(frozen=True)
class Action:
    """One computation: a stage's pass over one microbatch."""

    kind: Kind
    stage: int
    microbatch: int


COST = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.INPUT: 1, Kind.WEIGHT: 1}
"""Relative time: a backward pass multiplies twice as many matrices as a forward pass."""

_PASSES = (Kind.FORWARD, Kind.BACKWARD)

SCHEDULES = ("interleaved", "simple", "zero_bubble", "_only_forward")


@dataclass(frozen=True)
class Plan:
    """A schedule.

    Attributes:
        orders: The computations of each rank, in order.
        duration: Duration of the complete step, in forward passes of one microbatch through one stage.

    """

    orders: tuple[tuple[Action, ...], ...]
    duration: int

    @property
    def bubble(self) -> float:
        """Fraction of the step in which a rank is idle, averaged over ranks."""
        busy = sum(COST[action.kind] for order in self.orders for action in order)
        return 1 - busy / (self.duration * len(self.orders))


def make_plan(
    schedule: str, num_ranks: int, microbatches: int, stages_per_rank: int = 1, active: int | None = None
) -> Plan:
    """The orders in which ``num_ranks`` ranks compute; stage s belongs to rank ``s % num_ranks``.

    Args:
        schedule: ``interleaved``: backward passes first, so few microbatches are in flight at once (1F1B; Narayanan et al.,
            "Memory-Efficient Pipeline-Parallel DNN Training", 2021). ``simple``: all forward passes first (GPipe; Huang
            et al., 2019). ``zero_bubble``: weight gradients are computed when nothing else is ready (Qi et
            al., "Zero Bubble Pipeline Parallelism", 2023). ``_only_forward``: no backward passes.
        num_ranks: Number of ranks of the pipeline.
        microbatches: Number of microbatches per step.
        stages_per_rank: Stages per rank; more reduce the bubble and increase the traffic.
        active: Maximum number of microbatches that a stage holds at once, in ``interleaved`` and ``zero_bubble``.

    Raises:
        ValueError: If there is no such schedule.

    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r}. HINT: choose one of {', '.join(SCHEDULES)}.")
    stages = num_ranks * stages_per_rank
    if schedule != "zero_bubble":
        orders = [
            _fixed_order(schedule, rank, num_ranks, microbatches, stages_per_rank, active) for rank in range(num_ranks)
        ]
        duration = _simulate(orders, stages)
        if duration is not None:
            return Plan(tuple(map(tuple, orders)), duration)
    return _ListScheduler(schedule, num_ranks, microbatches, stages_per_rank, active).run()


def _fixed_order(
    schedule: str, rank: int, num_ranks: int, microbatches: int, stages_per_rank: int, active: int | None
) -> list[Action]:
    """Forward passes until the first microbatch can return, then forward and backward passes in turn."""
    forward, backward = (_urgent_first(kind, rank, num_ranks, microbatches, stages_per_rank) for kind in _PASSES)
    if schedule == "_only_forward":
        return forward
    if schedule == "simple":
        return forward + backward
    ahead = _limit(rank, num_ranks, stages_per_rank, active) - 1
    order = forward[:ahead]
    for action, back in zip(forward[ahead:], backward, strict=False):
        order += [action, back]
    return order + backward[max(0, len(forward) - ahead) :]


def _simulate(orders: list[list[Action]], num_stages: int) -> int | None:
    """Time at which the last rank finishes; None on a deadlock."""
    done: dict[Action, int] = {}
    free, places = [0] * len(orders), [0] * len(orders)
    while places != [len(order) for order in orders]:
        before = list(places)
        for rank, order in enumerate(orders):
            while places[rank] < len(order):
                action = order[places[rank]]
                needed = _needs(action, num_stages, split=False)
                if not all(one in done for one in needed):
                    break
                free[rank] = done[action] = max([free[rank], *(done[one] for one in needed)]) + COST[action.kind]
                places[rank] += 1
        if places == before:
            return None
    return max(free)


def _limit(rank: int, num_ranks: int, stages_per_rank: int, active: int | None) -> int:
    """Microbatches that a rank must hold to stay busy until the first one returns, up to the allowed number."""
    if stages_per_rank > 1:  # with fewer, no microbatch would reach the last stage
        return 2 * (num_ranks - rank - 1) + (stages_per_rank - 1) * num_ranks + 1
    return num_ranks - rank if active is None else max(1, min(num_ranks - rank, active))


def _urgent_first(kind: Kind, rank: int, num_ranks: int, microbatches: int, stages_per_rank: int) -> list[Action]:
    """Order by groups of ``num_ranks`` microbatches: each group passes through all stages of a rank before the next."""
    sign = 1 if kind is Kind.FORWARD else -1
    actions = [
        Action(kind, stage, microbatch)
        for stage in range(rank, num_ranks * stages_per_rank, num_ranks)
        for microbatch in range(microbatches)
    ]
    return sorted(actions, key=lambda one: (one.microbatch // num_ranks, sign * one.stage, one.microbatch))


class _ListScheduler:
    """Simulates the pipeline and gives each free rank the most urgent computation whose inputs are available."""

    def __init__(self, schedule: str, num_ranks: int, microbatches: int, stages_per_rank: int, active: int | None):
        self._split = schedule == "zero_bubble"
        self._stages = num_ranks * stages_per_rank
        self._done: dict[Action, int] = {}
        self._orders: list[list[Action]] = [[] for _ in range(num_ranks)]
        self._free = [0] * num_ranks
        # With split backward passes, each rank may hold as many as the first one: deferred work fills its bubble.
        ranks = [0] * num_ranks if self._split else range(num_ranks)
        self._limits = [_limit(rank, num_ranks, stages_per_rank, active) for rank in ranks]
        kinds = (Kind.INPUT, Kind.FORWARD, Kind.WEIGHT) if self._split else (Kind.BACKWARD, Kind.FORWARD)
        self._todo = [
            [one for kind in kinds for one in _urgent_first(kind, rank, num_ranks, microbatches, stages_per_rank)]
            for rank in range(num_ranks)
        ]

    def run(self) -> Plan:
        now = 0
        while any(self._todo):
            if not self._start(now, strict=True) and all(free <= now for free in self._free):
                self._start(now, strict=False)  # all ranks wait for one that is at its limit
            now = min(free for free in self._free if free > now)
        return Plan(tuple(map(tuple, self._orders)), max(self._free))

    def _start(self, now: int, strict: bool) -> bool:
        """Assign work to the ranks that are free at ``now``; returns whether there was any."""
        started = False
        for rank in range(len(self._free)):
            if self._free[rank] > now:
                continue
            for action in self._todo[rank]:
                if self._ready(action, now) and not (strict and self._is_full(rank, action)):
                    self._todo[rank].remove(action)
                    self._orders[rank].append(action)
                    self._free[rank] = self._done[action] = now + COST[action.kind]
                    started = True
                    break
            if started and not strict:
                break
        return started

    def _ready(self, action: Action, now: int) -> bool:
        return all(self._done.get(needed, now + 1) <= now for needed in _needs(action, self._stages, self._split))

    def _is_full(self, rank: int, action: Action) -> bool:
        if action.kind is not Kind.FORWARD:
            return False
        kinds = [done.kind for done in self._orders[rank]]
        last = Kind.WEIGHT if self._split else Kind.BACKWARD
        return kinds.count(Kind.FORWARD) - kinds.count(last) >= self._limits[rank]


def _needs(action: Action, num_stages: int, split: bool) -> list[Action]:
    """The actions that ``action`` depends on."""
    kind, stage, microbatch = action.kind, action.stage, action.microbatch
    if kind is Kind.FORWARD:
        return [Action(kind, stage - 1, microbatch)] if stage else []
    if kind is Kind.WEIGHT:
        return [Action(Kind.INPUT, stage, microbatch)]
    needed = [Action(Kind.FORWARD, stage, microbatch)]
    if stage + 1 < num_stages:
        needed.append(Action(Kind.INPUT if split else Kind.BACKWARD, stage + 1, microbatch))
    return needed
