# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.patches.checkpoint``: activation checkpointing."""

from __future__ import annotations

import re

import torch.utils.checkpoint as of_torch
from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError


def checkpoint(module: nn.Module, *args: object, preserve_rng_state: bool = True) -> object:
    """``module(*args)`` without keeping its activations."""
    return of_torch.checkpoint(module, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state)


def group_size(strategy: str, count: int) -> int:
    """How many of ``count`` modules in a row are checkpointed as one.

    Raises:
        ParallelConfigError: If the strategy has another name.

    """
    found = re.fullmatch(r"group_([1-9]\d*)", str(strategy))
    if found is None and strategy not in ("each", "contiguous"):
        raise ParallelConfigError(
            f"activation checkpointing with strategy={strategy!r} was set. HINT: use 'each', 'contiguous', or"
            " 'group_N', such as 'group_2'."
        )
    return int(found[1]) if found else 1 if strategy == "each" else max(count, 1)


def checkpoint_sequential(
    sequential_module: nn.Sequential,
    input: object,
    strategy: str = "each",
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
) -> object:
    """``sequential_module(input)`` without keeping the activations within checkpointed groups of modules.

    Args:
        sequential_module: Sequence of modules with one argument.
        input: Input of the first module.
        strategy: Group: ``each`` module, ``contiguous`` (all at once) or ``group_N`` (N at a time).
        preserve_rng_state: Whether dropout is the same in both passes.
        pack_args_as_tuple: Without effect.

    Raises:
        ParallelConfigError: If the strategy has another name.

    """
    children = list(sequential_module)
    size = group_size(strategy, len(children))
    for begin in range(0, len(children), size):
        input = checkpoint(nn.Sequential(*children[begin : begin + size]), input, preserve_rng_state=preserve_rng_state)
    return input
