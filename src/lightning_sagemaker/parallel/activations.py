# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing of a model's blocks, and offloading of their saved activations to CPU memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from lightning_sagemaker.parallel.trace import ReplacedForwards


def save_memory(blocks: Iterable[nn.Module], recompute: bool, offload: bool, pin: bool) -> ReplacedForwards:
    """Recompute or offload the activations of each block; with both options only its inputs are saved, in CPU memory.

    Args:
        blocks: Blocks of a model.
        recompute: Save only a block's inputs, and recompute it in the backward pass (activation checkpointing).
        offload: Offload saved activations to CPU memory.
        pin: Whether that memory is pinned, for asynchronous copies from and to a GPU.

    Returns:
        The replaced forward methods, to be restored.

    """
    replaced = ReplacedForwards()
    for block in blocks:
        forward = block.forward
        if recompute:
            forward = functools.partial(_recomputed, forward)
        if offload:
            forward = functools.partial(_offloaded, forward, pin)
        if recompute or offload:
            replaced.replace(block, forward)
    return replaced


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a block with recomputation in the backward pass, without a key-value cache, which would be extended twice."""
    if torch.is_grad_enabled():
        kwargs |= {name: None for name in _CACHES if name in kwargs}
        kwargs |= {"use_cache": False} if "use_cache" in kwargs else {}
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


_CACHES = ("past_key_values", "past_key_value", "layer_past")
"""Names of the key-value cache's argument in transformers 4 and 5."""


def _offloaded(forward: Callable[..., Any], pin: bool, *args: Any, **kwargs: Any) -> Any:
    with save_on_cpu(pin_memory=pin):
        return forward(*args, **kwargs)
