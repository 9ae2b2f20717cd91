# SPDX-License-Identifier: Apache-2.0
"""Which plan is fastest here: tried for about two seconds, on all ranks together, before the training."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_sagemaker.collectives.reduction.plan import FLAT, HIERARCHICAL, POWERSGD, Plan
from lightning_sagemaker.collectives.reduction.topology import Topology

SECONDS = 2.0
_MARGIN = 0.95
"""Share of the plain reduction's time that another must stay below to be taken."""
_CONNECTS, _FIRST, _MOST = 4 * 2**10, 256 * 2**10, 64 * 2**20
"""Bytes of a trial that makes connections and does not count, of the first that does, and of the largest."""
_ENOUGH = 20
"""Rounds with all gradients of a small model, which need no two seconds."""
_PIECES = (2**20, 4 * 2**20)
_DDP_BUCKET = 25 * 2**20
"""Bytes; torch's default for ``bucket_cap_mb``."""

Trial = Callable[[Tensor], None]


def candidates(topology: Topology, compression: str | None, device: torch.device) -> list[Plan]:
    """What is tried: the plain reduction first, then what is exact, then what is compressed.

    Args:
        topology: Topology of all ranks.
        compression: Compression that is allowed.
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
    """What was found.

    Attributes:
        plan: The fastest.
        seconds: Seconds of each plan: the median over the rounds, of the slowest rank.
        tried_bytes: Bytes of float32 gradients, reduced in these seconds.

    """

    plan: Plan
    seconds: dict[Plan, float]
    tried_bytes: int

    @property
    def reason(self) -> str:
        """The figures, in a sentence."""
        listed = "; ".join(f"{plan.words} {1e3 * taken:.1f} ms" for plan, taken in self.seconds.items())
        return f"Measured on {self.tried_bytes / 2**20:.3g} MiB: {listed}."


def choose(trials: Mapping[Plan, Trial], gradient_bytes: int, device: torch.device, limit: float = SECONDS) -> Choice:
    """Try plans in turn. Collective over all ranks, which find the same.

    Args:
        trials: Plan -> what reduces a vector by it and waits; :class:`Plan()` is among them.
        gradient_bytes: Bytes of the model's gradients; no more is tried.
        device: Device of the gradients.
        limit: Seconds, about.

    """
    begin, size, kept = time.perf_counter(), min(_FIRST, gradient_bytes), list[list[float]]()
    most = max(size, min(gradient_bytes, _MOST))
    _round(trials, min(_CONNECTS, size), begin, device)
    while True:
        *seconds, elapsed = _round(trials, size, begin, device)
        kept.append(seconds)
        if elapsed > limit or len(kept) == _ENOUGH:
            break
        if size < most and sum(seconds) < limit / 4:
            size, kept = min(2 * size, most), []
    taken = {plan: statistics.median(times) for plan, times in zip(trials, zip(*kept, strict=True), strict=True)}
    fastest = min(taken, key=lambda plan: taken[plan])
    return Choice(fastest if taken[fastest] < _MARGIN * taken[Plan()] else Plan(), taken, size)


def _round(trials: Mapping[Plan, Trial], size: int, begin: float, device: torch.device) -> list[float]:
    """Seconds of each trial, and since the beginning, of the slowest rank."""
    random = torch.Generator(device).manual_seed(0)  # of its own: the training's is left as it was
    vector = torch.rand(max(VectorAsBucket.WIDTH, size // 4), generator=random, device=device)
    seconds = []
    for trial in trials.values():
        _wait_for_all(device)
        since = time.perf_counter()
        trial(vector)
        _synchronise(device)
        seconds.append(time.perf_counter() - since)
    found = torch.tensor([*seconds, time.perf_counter() - begin], dtype=torch.float64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    agreed: list[float] = found.tolist()
    return agreed


def plain(vector: Tensor) -> None:
    """What DDP does with buckets of its default size."""
    for work in [dist.all_reduce(part, async_op=True) for part in torch.split(vector, _DDP_BUCKET // vector.itemsize)]:
        work.wait()


def _wait_for_all(device: torch.device) -> None:
    dist.all_reduce(torch.zeros(1, device=device))
    _synchronise(device)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class VectorAsBucket:
    """A vector with the methods of DDP's bucket that PowerSGD asks, as one matrix.

    Args:
        vector: Vector of at least :attr:`WIDTH` numbers.

    """

    WIDTH = 512

    def __init__(self, vector: Tensor) -> None:
        rows = max(1, vector.numel() // self.WIDTH)
        self._matrix = vector[: rows * self.WIDTH].view(rows, -1)

    def buffer(self) -> Tensor:
        """All numbers."""
        return self._matrix.view(-1)

    def gradients(self) -> Sequence[Tensor]:
        """The matrix."""
        return [self._matrix]

    def parameters(self) -> Sequence[Tensor]:
        """What the gradients are of: the matrix, for want of another."""
        return [self._matrix]

    def index(self) -> int:
        """Another for each size, as memory is kept by it."""
        return self._matrix.numel()

    def is_last(self) -> bool:
        """Whether a step ends with it."""
        return True
