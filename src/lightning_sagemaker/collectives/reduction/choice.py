# SPDX-License-Identifier: Apache-2.0
"""Choose the fastest plan by a benchmark of about two seconds, on all ranks together, before the training.

A plan's time grows with the bytes, from an offset of its own: the pipeline of a hierarchy has to fill before it pays.
So the vector's size is doubled while time is left, and the time for all gradients is extrapolated from the two largest.
Plans that are far slower are dropped early, which leaves more time for the others (successive halving: Karnin, Koren
and Somekh, 2013).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_sagemaker.collectives.reduction.plan import FLAT, HIERARCHICAL, PIECE, POWERSGD, Plan
from lightning_sagemaker.collectives.reduction.topology import Topology

SECONDS = 2.0
_MARGIN = 0.95
"""Fraction of the plain reduction's time that another plan must stay below to be chosen."""
_CONNECTS, _FIRST, _MOST = 4 * 2**10, 256 * 2**10, 64 * 2**20
"""Bytes of the warm-up, which opens the connections, of the first trial, and of the largest."""
_ENOUGH = 20
"""Maximum rounds at the largest size, which for a small model takes less than two seconds."""
_CLEAR = 4 * 2**20
"""Bytes from which plans are dropped: below, there are fewer than two pieces, so nothing is pipelined."""
_BEHIND = 1.5
"""Multiple of the fastest plan's expected time beyond which a plan is dropped."""
_PIECES = (PIECE, 2 * PIECE)
_DDP_BUCKET = 25 * 2**20
"""Bytes; torch's default for ``bucket_cap_mb``."""

Trial = Callable[[Tensor], None]


def candidates(topology: Topology, compression: str | None, device: torch.device) -> list[Plan]:
    """The plans to try: the plain reduction first, then exact ones, then compressed ones.

    Args:
        topology: Topology of all ranks.
        compression: Compression that the user allows; None for exact plans only.
        device: Device of the gradients. On GPUs the pieces of a bucket do not overlap, so it is not split.

    """
    pieces = _PIECES if device.type == "cpu" else (_MOST,)
    algorithms = [FLAT] if topology.obstacle else [FLAT, HIERARCHICAL]
    found = [Plan()]
    for kind in (None, compression) if compression in ("bf16", "fp16") else (None,):
        for algorithm in algorithms:
            if kind is not None or algorithm != FLAT:
                found += [Plan(algorithm, kind, size) for size in pieces]
    return found + [Plan(FLAT, POWERSGD)] * (compression == POWERSGD)


@dataclass(frozen=True)
class Choice:
    """The chosen plan and its measurements.

    Attributes:
        plan: The fastest plan.
        seconds: Expected seconds of each plan for all gradients.
        gradient_bytes: Bytes of all gradients.
        tried_bytes: Bytes of the largest vector that was timed.

    """

    plan: Plan
    seconds: dict[Plan, float]
    gradient_bytes: int
    tried_bytes: int

    @property
    def reason(self) -> str:
        """The measurements, as a sentence."""
        listed = "; ".join(f"{plan.description} {1e3 * taken:.1f} ms" for plan, taken in self.seconds.items())
        tried, all_of_them = self.tried_bytes / 2**20, self.gradient_bytes / 2**20
        expected = "" if tried == all_of_them else f", expected for {all_of_them:.3g} MiB"
        return f"Measured on {tried:.3g} MiB{expected}: {listed}."


@dataclass
class _Times:
    """Measured times of one plan.

    Attributes:
        by_size: Bytes, ascending -> seconds, the minimum over the rounds, as other load only adds to them.

    """

    by_size: dict[int, float] = field(default_factory=dict)

    def add(self, size: int, seconds: float) -> None:
        self.by_size[size] = min(seconds, self.by_size.get(size, seconds))

    @property
    def last(self) -> float:
        return [*self.by_size.values()][-1]

    def expected(self, size: int) -> float:
        """Expected seconds for ``size`` bytes, extrapolated linearly from the two largest sizes."""
        largest, seconds = [*self.by_size.items()][-1]
        slope = seconds / largest  # no offset
        if len(self.by_size) > 1:
            before, seconds_before = [*self.by_size.items()][-2]
            found = (seconds - seconds_before) / (largest - before)
            slope = min(max(found, slope / 8), slope)  # values outside are noise
        return seconds + slope * (size - largest)


def choose(trials: Mapping[Plan, Trial], gradient_bytes: int, device: torch.device, limit: float = SECONDS) -> Choice:
    """Time plans in turn. Collective over all ranks; the choice is the same on all.

    Args:
        trials: Plan -> a function that reduces a vector with it and waits. ``Plan()`` must be among them.
        gradient_bytes: Bytes of the model's gradients, the maximum size of a vector.
        device: Device of the gradients.
        limit: Approximate time limit, in seconds.

    """
    begin, size, rounds = time.perf_counter(), min(_FIRST, gradient_bytes), 0
    most = max(size, min(gradient_bytes, _MOST))
    times, left = {plan: _Times() for plan in trials}, list(trials)
    _round(trials, min(_CONNECTS, size), begin, device)
    while True:
        *seconds, elapsed = _round({plan: trials[plan] for plan in left}, size, begin, device)
        for plan, taken in zip(left, seconds, strict=True):
            times[plan].add(size, taken)
        rounds += 1
        if size >= _CLEAR:
            left = _near(left, times, gradient_bytes)
        again = sum(times[plan].last for plan in left)
        if size < most and elapsed + 2 * again <= limit:
            size, rounds = min(2 * size, most), 0
        elif elapsed + again > limit or rounds == _ENOUGH:
            break
    expected = {plan: found.expected(gradient_bytes) for plan, found in times.items()}
    fastest = min(left, key=lambda plan: expected[plan])
    is_faster = expected[fastest] < _MARGIN * expected[Plan()]
    return Choice(fastest if is_faster else Plan(), expected, gradient_bytes, size)


def _near(plans: list[Plan], times: Mapping[Plan, _Times], size: int) -> list[Plan]:
    """The plans that may be the fastest for ``size`` bytes."""
    best = min(times[plan].expected(size) for plan in plans)
    return [plan for plan in plans if times[plan].expected(size) <= _BEHIND * best]


def _round(trials: Mapping[Plan, Trial], size: int, begin: float, device: torch.device) -> list[float]:
    """Seconds of each trial, then seconds since ``begin``, each of the slowest rank."""
    random = torch.Generator(device).manual_seed(0)  # its own: the training's random state must not change
    vector = torch.rand(max(VectorAsBucket.WIDTH, size // 4), generator=random, device=device)
    seconds = []
    for trial in trials.values():
        _wait_for_all(device)
        since = time.perf_counter()
        trial(vector)
        _synchronize(device)
        seconds.append(time.perf_counter() - since)
    found = torch.tensor([*seconds, time.perf_counter() - begin], dtype=torch.float64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    agreed: list[float] = found.tolist()
    return agreed


def plain(vector: Tensor) -> None:
    """All-reduce a vector as DDP does, in buckets of its default size."""
    for work in [dist.all_reduce(part, async_op=True) for part in torch.split(vector, _DDP_BUCKET // vector.itemsize)]:
        work.wait()


def _wait_for_all(device: torch.device) -> None:
    dist.all_reduce(torch.zeros(1, device=device))
    _synchronize(device)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class VectorAsBucket:
    """A vector with the methods of DDP's bucket that PowerSGD calls, as one matrix.

    Args:
        vector: Vector of at least :attr:`WIDTH` elements.

    """

    WIDTH = 512

    def __init__(self, vector: Tensor) -> None:
        rows = max(1, vector.numel() // self.WIDTH)
        self._matrix = vector[: rows * self.WIDTH].view(rows, -1)

    def buffer(self) -> Tensor:
        """All elements, in one dimension."""
        return self._matrix.view(-1)

    def gradients(self) -> Sequence[Tensor]:
        """The matrix."""
        return [self._matrix]

    def parameters(self) -> Sequence[Tensor]:
        """The matrix again, in place of a parameter."""
        return [self._matrix]

    def index(self) -> int:
        """An index per size, as PowerSGD keeps its memory by index."""
        return self._matrix.numel()

    def is_last(self) -> bool:
        """Whether this is the last bucket of the backward pass."""
        return True
