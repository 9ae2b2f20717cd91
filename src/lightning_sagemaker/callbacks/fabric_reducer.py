# SPDX-License-Identifier: Apache-2.0
"""The state that DDP's wrapper of a module in a custom loop has from earlier steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_sagemaker.collectives.buckets import bucket_layout, rebuild_as

if TYPE_CHECKING:
    from torch import nn

    from lightning_sagemaker.callbacks.fabric_entries import ReducerEntry

_SENDS = "require_forward_param_sync"  # attribute of DDP; False after a forward pass without gradients


def reducer_state(module: nn.Module | None) -> ReducerEntry:
    """DDP's state from earlier steps: its buckets, and whether it broadcasts buffers before the next. Collective."""
    return {"buckets": bucket_layout(module), "sends": getattr(module, _SENDS, None)}


def restore_reducer(module: nn.Module | None, kept: ReducerEntry) -> None:
    """Restore :func:`reducer_state`."""
    rebuild_as(module, kept["buckets"])
    if kept["sends"] is not None and hasattr(module, _SENDS):
        setattr(module, _SENDS, kept["sends"])
