# SPDX-License-Identifier: Apache-2.0
"""What the blocks of a model keep for the backward pass: computed again, or kept in the host's memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from lightning_sagemaker.parallel.trace import ReplacedForwards


def save_memory(blocks: Iterable[nn.Module], recompute: bool, offload: bool, pin: bool) -> ReplacedForwards:
    """Let each block keep less on the device; with both, its inputs only, and those on the host.

    Args:
        blocks: Of a model.
        recompute: Keep a block's inputs only, and run it again in the backward pass (activation checkpointing).
        offload: Keep what is kept in the host's memory.
        pin: Whether that memory is locked, for copies beside the computation: with a GPU.

    Returns:
        What undoes it.

    """
    replaced = ReplacedForwards()
    for block in blocks:
        forward = block.forward
        if recompute:
            forward = functools.partial(checkpoint, forward, use_reentrant=False)
        if offload:
            forward = functools.partial(_on_host, forward, pin)
        if recompute or offload:
            replaced.replace(block, forward)
    return replaced


def _on_host(forward: Callable[..., Any], pin: bool, *args: Any, **kwargs: Any) -> Any:
    with save_on_cpu(pin_memory=pin):
        return forward(*args, **kwargs)
