# SPDX-License-Identifier: Apache-2.0
"""What computes something of the whole model or of the whole batch, of which a stage has a part at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_sagemaker._lightning import MisconfigurationException, rank_zero_info
from lightning_sagemaker.parallel.optimizer_scope import Scope, scope_of


def check_optimizers(optimizers: Iterable[Any], shares_matrices: bool) -> None:
    """See that each optimizer's step can be made by each process for the parameters that it has.

    Args:
        optimizers: As the user made them.
        shares_matrices: Whether a process has parts of matrices.

    Raises:
        MisconfigurationException: If one cannot.

    """
    for optimizer in optimizers:
        optimizer = getattr(optimizer, "_optimizer", optimizer)  # Lightning's wrapper has one within
        scope = scope_of(optimizer)
        name = type(optimizer).__name__
        if scope is Scope.MODEL:
            raise MisconfigurationException(
                f"{name} was chosen with strategy='smp' and partitions, but its step depends on the gradients of all"
                " parameters at once, and each process has those of its stages. HINT: an optimizer that updates each"
                " parameter by itself, such as AdamW; gradient_clip_val of the Trainer clips by the norm of the whole model."
            )
        if scope is Scope.MATRIX and shares_matrices:
            raise MisconfigurationException(
                f"{name} was chosen with strategy='smp' and tensor_parallel_degree beside partitions, but its step depends"
                " on whole matrices, of which each process has a part. HINT: an optimizer that updates each number by"
                " itself, such as AdamW, or set partitions to 1."
            )


def say_statistics(module: nn.Module) -> None:
    """Log on rank zero that BatchNorm, if there is any, sees a microbatch at a time."""
    names = [name for name, found in module.named_modules() if isinstance(found, _BatchNorm)]
    if names:
        rank_zero_info(
            f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: BatchNorm normalizes by the statistics of each"
            " microbatch, not of the whole batch, so training differs from that of one process. HINT: GroupNorm or LayerNorm"
            " do not depend on the batch."
        )
