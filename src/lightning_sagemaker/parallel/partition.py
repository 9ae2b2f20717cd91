# SPDX-License-Identifier: Apache-2.0
"""Assigns the blocks of a model to pipeline stages, balanced by memory and time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import nn

from lightning_sagemaker.parallel.blocks import Blocks
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.trace import Trace


@dataclass(frozen=True)
class Partition:
    """Which stage has which blocks and parameters.

    Attributes:
        ends: For each stage, the number of blocks up to its end.
        stages: Name of each parameter -> the stages that use it, ascending; more than one if it is tied.
        sizes: For each stage, the number of its parameters' elements.

    """

    ends: tuple[int, ...]
    stages: Mapping[str, tuple[int, ...]]
    sizes: tuple[int, ...]

    def blocks_of(self, stage: int) -> range:
        """Indices of the blocks of a stage."""
        return range(self.ends[stage - 1] if stage else 0, self.ends[stage])

    def table(self, blocks: Blocks) -> str:
        """A log line for each stage."""
        lines = []
        for stage, size in enumerate(self.sizes):
            own = self.blocks_of(stage)
            lines.append(f"stage {stage}: {blocks.names[own[0]]} to {blocks.names[own[-1]]}, {size:,} parameters")
        return "\n".join(lines)


def make_partition(
    root: nn.Module,
    blocks: Blocks,
    traced: Trace,
    num_stages: int,
    memory_weight: float,
    ends: Sequence[int] | None = None,
) -> Partition:
    """Partition a model into stages.

    The cost of a block is ``memory_weight`` times its share of the parameters plus ``1 - memory_weight`` times its
    share of the time, estimated by the multiplications of its matrices: embeddings take memory and no time.

    Args:
        root: The module with all parameters.
        blocks: Blocks of the module.
        traced: The trace of the module.
        num_stages: Number of stages.
        memory_weight: From 0 to 1.
        ends: Number of blocks up to the end of each stage; default: balanced costs.

    Raises:
        ParallelConfigError: If there are fewer blocks than stages, or a value bypasses the blocks across a split.

    """
    if num_stages > len(blocks):
        raise ParallelConfigError(
            f"{num_stages} pipeline stages were requested, but {blocks.name} has {len(blocks)} blocks. HINT: set partitions"
            f" to at most {len(blocks)}."
        )
    parameters = dict(root.named_parameters(remove_duplicate=False))
    if ends is None:
        costs = _costs(parameters, traced, blocks, memory_weight)
        allowed = {end for end in range(1, len(blocks)) if not _passing(traced, end)}
        ends = balance(costs, num_stages, allowed) or balance(costs, num_stages)
    elif len(ends) != num_stages or list(ends) != sorted({*ends, len(blocks)}) or ends[0] < 1:
        raise ParallelConfigError(
            f"ends={list(ends)} was set for {num_stages} stages of {len(blocks)} blocks. HINT: give the number of blocks"
            f" up to the end of each stage, ascending; the last is {len(blocks)}."
        )
    cut = next((end for end in ends[:-1] if _passing(traced, end)), None)
    if cut is not None:
        raise ParallelConfigError(
            f"the model uses a value from before {blocks.names[cut - 1]} after it without passing it through the blocks, so"
            f" it cannot be split there. HINT: split elsewhere, or return the value from each block."
        )
    stage_of = [stage for stage, end in enumerate(ends) for _ in range(end - (ends[stage - 1] if stage else 0))]
    stages = {name: tuple(sorted({stage_of[one] for one in regions})) for name, regions in traced.regions.items()}
    sizes = [0] * num_stages
    seen: set[int] = set()
    for name, parameter in parameters.items():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            for stage in stages[name]:
                sizes[stage] += parameter.numel()
    return Partition(tuple(ends), stages, tuple(sizes))


def _passing(traced: Trace, end: int) -> bool:
    """Whether a value would bypass a split after this many blocks."""
    return any(birth < end <= use for birth, use in traced.crossings)


def _costs(parameters: Mapping[str, nn.Parameter], traced: Trace, blocks: Blocks, memory_weight: float) -> list[float]:
    memory, time = [0.0] * len(blocks), [0.0] * len(blocks)
    inside = {id(parameter) for parameter in blocks.modules[0].parameters()}
    seen: set[int] = set()
    for name, parameter in parameters.items():
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        for region in traced.regions[name]:
            memory[region] += parameter.numel()
            if parameter.dim() > 1 and (region or id(parameter) in inside):  # before the blocks are embeddings: lookups
                time[region] += parameter.numel()
    totals = sum(memory) or 1.0, sum(time) or 1.0
    return [
        memory_weight * m / totals[0] + (1 - memory_weight) * t / totals[1] for m, t in zip(memory, time, strict=True)
    ]


def balance(costs: Sequence[float], num_stages: int, allowed: Collection[int] | None = None) -> tuple[int, ...]:
    """Split a sequence of costs into ``num_stages`` nonempty parts, so that the most expensive one is minimal.

    Uses dynamic programming over (number of blocks, number of stages).

    Args:
        costs: Cost of each block.
        num_stages: Number of parts.
        allowed: Numbers of blocks after which a split is allowed; default: all.

    Returns:
        For each part, the number of blocks up to its end; empty if too few splits are allowed.

    """
    sums = [0.0, *accumulate(costs)]
    count = len(costs)
    ends = range(1, count + 1)
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(end, 1): (sums[end], (end,)) for end in ends}
    for parts in range(2, num_stages + 1):
        for end in range(parts, count + 1):
            found = [
                (max(best[cut, parts - 1][0], sums[end] - sums[cut]), (*best[cut, parts - 1][1], end))
                for cut in range(parts - 1, end)
                if (allowed is None or cut in allowed) and (cut, parts - 1) in best
            ]
            if found:
                best[end, parts] = min(found)
    return best[count, num_stages][1] if (count, num_stages) in best else ()
