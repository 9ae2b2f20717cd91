# SPDX-License-Identifier: Apache-2.0
"""Checks for a pipeline: options that contradict each other, and modules that it cannot train."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch._dynamo import OptimizedModule

from lightning_sagemaker._lightning import MisconfigurationException, rank_zero_info
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees

if TYPE_CHECKING:
    from lightning_sagemaker._types import LightningModule


def check_options(degrees: ParallelDegrees, has_ends: bool, activation_checkpointing: bool) -> None:
    """Raise for options of ``SMPStrategy`` that contradict each other.

    Args:
        degrees: The parallel layout.
        has_ends: Whether ``ends`` was passed.
        activation_checkpointing: Whether activations are recomputed in the backward pass.

    Raises:
        ParallelConfigError: If options contradict each other.

    """
    if degrees.pipeline == 1 and degrees.shard != 1:
        raise ParallelConfigError(
            f"a shard degree of {degrees.shard} was set without partitions, but SMPStrategy has pipeline stages, and does"
            " not shard parameters. HINT: use SMPShardedStrategy, or Trainer(strategy='smp'), which chooses."
        )
    if not degrees.auto_partition and not has_ends:
        raise ParallelConfigError(
            "auto_partition is false, but no partition is given. HINT: pass SMPStrategy(ends=...), the number of"
            " blocks up to the end of each stage, or set auto_partition to true."
        )
    if degrees.schedule == "zero_bubble" and (activation_checkpointing or degrees.offload_activations):
        raise ParallelConfigError(
            "pipeline=zero_bubble was set with activation_checkpointing or offload_activations, but it runs the backward"
            " pass of each block twice. HINT: set pipeline to interleaved."
        )


def check_module(module: LightningModule, syncs_batch_norm: bool) -> None:
    """Raise for a module that cannot be trained in a pipeline.

    Args:
        module: The LightningModule.
        syncs_batch_norm: Whether ``Trainer(sync_batchnorm=True)`` was set for a fit.

    Raises:
        MisconfigurationException: If the module cannot be trained in a pipeline.

    """
    if syncs_batch_norm:
        raise MisconfigurationException(
            "sync_batchnorm=True was set with strategy='smp', but stages run at different times. HINT: leave it out;"
            " BatchNorm uses each microbatch's statistics."
        )
    if _is_compiled(module) and not hasattr(torch.compiler, "set_stance"):
        raise MisconfigurationException(
            f"{type(module).__name__} has compiled modules, which strategy='smp' runs uncompiled, and torch"
            f" {torch.__version__} cannot. HINT: leave torch.compile out, or use torch 2.6 or newer."
        )
    if not module.automatic_optimization:
        raise MisconfigurationException(
            f"{type(module).__name__} uses manual optimization, which strategy='smp' does not support: it interleaves"
            " forward and backward passes. HINT: set automatic_optimization = True."
        )


def _is_compiled(module: nn.Module) -> bool:
    """Whether a module, or a part of it, was compiled by ``torch.compile`` or ``Module.compile``."""
    return any(isinstance(one, OptimizedModule) or vars(one).get("_compiled_call_impl") for one in module.modules())


def uncompiled(module: nn.Module) -> Callable[[], AbstractContextManager[object]]:
    """Returns a context in which compiled modules run uncompiled, as compiled code would not skip blocks."""
    if not _is_compiled(module):
        return nullcontext
    rank_zero_info("strategy='smp' runs compiled modules uncompiled: each process calls a part of them.")
    return functools.partial(torch.compiler.set_stance, "force_eager")
