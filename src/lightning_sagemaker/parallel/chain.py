# SPDX-License-Identifier: Apache-2.0
"""Chooses where a model is split: at its list of blocks, or else in the sequence of modules that it calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lightning_sagemaker.parallel.blocks import Blocks, find_blocks
from lightning_sagemaker.parallel.containers import map_tensors
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.delayed import is_delayed, on_shapes
from lightning_sagemaker.parallel.functions import by_modules
from lightning_sagemaker.parallel.partition import Partition, make_partition
from lightning_sagemaker.parallel.trace import NeedsRealValues, Trace, trace
from lightning_sagemaker.parallel.untouched import untouched

Ends = Sequence[int] | Callable[[Blocks], Sequence[int] | None] | None
"""Number of blocks up to the end of each stage, or a function that returns these; None to balance the costs."""


def find_cut(
    root: nn.Module,
    step: Callable[[object], object],
    microbatch: object,
    num_stages: int,
    memory_weight: float,
    ends: Ends = None,
) -> tuple[Blocks, Trace, Partition]:
    """Split a model between the blocks of its list; if that is not possible, between the modules that it calls.

    Args:
        root: The module with all parameters.
        step: The user's code for one microbatch.
        microbatch: The argument of ``step``.
        num_stages: Number of stages.
        memory_weight: As for :func:`~lightning_sagemaker.parallel.partition.make_partition`.
        ends: Numbers of blocks of the list; ignored if the model has none.

    Raises:
        ParallelConfigError: If neither is possible.

    """
    has_values = not is_delayed(root)
    with untouched(root), by_modules(), on_shapes(root) as fake:

        def attempt(blocks: Blocks) -> tuple[Blocks, Trace, Partition]:
            try:
                traced = trace(root, blocks, step, microbatch, fake)
            except NeedsRealValues as refused:
                if not has_values:
                    raise
                traced = replace(trace(root, blocks, step, microbatch, on_real_values=True), reason=str(refused))
            chosen = ends(blocks) if callable(ends) else ends
            return blocks, traced, make_partition(root, blocks, traced, num_stages, memory_weight, chosen)

        has_list = False
        try:
            blocks = find_blocks(root)
            has_list = True
            return attempt(blocks)
        except ParallelConfigError as error:
            if has_list and isinstance(ends, Sequence):
                raise
            first_error = error if has_list else None
            unlisted = error
        for chain in _find_chains(root, step, microbatch, fake):
            try:
                return attempt(chain)
            except ParallelConfigError as error:
                first_error = first_error or error
        raise first_error or unlisted


@dataclass
class _Call:
    module: nn.Module
    within: list[_Call] = field(default_factory=list)


def _find_chains(
    root: nn.Module, step: Callable[[object], object], microbatch: object, fake: FakeTensorMode
) -> Iterator[Blocks]:
    """Modules with parameters that are called once, in the order of their calls: the smallest ones, then their callers.

    A module that is called several times is part of its caller. Whether a value bypasses some of them, as the input of a
    residual block bypasses its parts but not the block, is detected by
    :func:`~lightning_sagemaker.parallel.trace.trace`.
    """
    top: list[_Call] = []
    running: list[_Call] = []
    counts: Counter[int] = Counter()

    def called(module: nn.Module, _: object) -> None:
        call = _Call(module)
        (running[-1].within if running else top).append(call)
        running.append(call)
        counts[id(module)] += 1

    handles = [
        nn.modules.module.register_module_forward_pre_hook(called),
        nn.modules.module.register_module_forward_hook(lambda *_: _drop_last(running), always_call=True),
    ]
    try:
        with torch.random.fork_rng(devices=[]), fake, torch.no_grad():
            step(map_tensors(microbatch, lambda tensor: fake.from_tensor(tensor.cpu())))
    except Exception:
        pass  # code after the model may need values; the trace detects where the model cannot be split
    finally:
        for handle in handles:
            handle.remove()
    names = {id(module): name for name, module in root.named_modules()}
    before: list[nn.Module] = []
    for depth in range(_depth(top), -1, -1):
        found = [module for module in _smallest(top, counts, depth) if id(module) in names]
        if len(found) > 1 and found != before and all(counts[id(module)] == 1 for module in found):
            yield Blocks(type(root).__name__, tuple(names[id(module)] for module in found), tuple(found))
        before = found


def _drop_last(calls: list[_Call]) -> None:
    calls.pop()


def _depth(calls: Sequence[_Call]) -> int:
    return max((1 + _depth(call.within) for call in calls), default=0)


def _smallest(calls: Sequence[_Call], counts: Counter[int], depth: int) -> list[nn.Module]:
    """Modules at most this deep; a ``Sequential`` does not count, as it has no code that could use other values."""
    found: list[nn.Module] = []
    for call in calls:
        if not any(True for _ in call.module.parameters()):
            continue
        deeper = depth if isinstance(call.module, nn.Sequential) else depth - 1
        within = _smallest(call.within, counts, deeper) if deeper >= 0 else []
        once = within and all(counts[id(module)] == 1 for module in within)
        found += within if once else [call.module]
    return found
