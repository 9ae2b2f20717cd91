# SPDX-License-Identifier: Apache-2.0
"""Warns that BatchNorm in a pipeline sees one microbatch at a time."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_sagemaker._lightning import rank_zero_info


def log_microbatch_statistics(module: nn.Module) -> None:
    """Log on rank zero that BatchNorm, if there is any, normalizes each microbatch separately."""
    names = [name for name, found in module.named_modules() if isinstance(found, _BatchNorm)]
    if names:
        rank_zero_info(
            f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: BatchNorm normalizes with the statistics of"
            " each microbatch, not of the full batch, so training differs from single-process training. HINT: GroupNorm or"
            " LayerNorm do not depend on the batch."
        )
