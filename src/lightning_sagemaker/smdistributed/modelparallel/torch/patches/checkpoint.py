# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.patches.checkpoint``: activation checkpointing."""

from __future__ import annotations

import torch.utils.checkpoint as of_torch
from torch import nn


def checkpoint(module: nn.Module, *args: object, preserve_rng_state: bool = True) -> object:
    """``module(*args)`` without keeping its activations."""
    return of_torch.checkpoint(module, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state)


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

    """
    children = list(sequential_module)
    size = {"each": 1, "contiguous": len(children)}.get(strategy) or int(strategy.removeprefix("group_"))
    for begin in range(0, len(children), size):
        input = checkpoint(nn.Sequential(*children[begin : begin + size]), input, preserve_rng_state=preserve_rng_state)
    return input
