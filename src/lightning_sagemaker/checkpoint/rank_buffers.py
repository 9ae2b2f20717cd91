# SPDX-License-Identifier: Apache-2.0
"""Buffers that differ between ranks, as statistics of BatchNorm do: a checkpoint holds those of rank zero only.

DDP gives all ranks those of rank zero before a training step, but a validation uses each rank's own, and so do averages of
weights that callbacks keep.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

_LARGEST = 1 << 20
"""Elements of a buffer: larger ones are tables, which no step changes."""


def buffers_of(trainer: Any) -> dict[str, Tensor]:
    """Buffers of the module and of modules that callbacks keep, by names."""
    found = dict(_small(trainer.lightning_module, "module"))
    for number, callback in enumerate(trainer.callbacks):
        for name, value in vars(callback).items():
            if isinstance(value, nn.Module):
                found |= dict(_small(value, f"{number}.{name}"))
    return found


def copied(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their values now, on the processor."""
    return {name: buffer.detach().cpu().clone() for name, buffer in buffers.items()}


def differing(trainer: Any, buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those of ``buffers`` that are not what rank zero writes now. Collective.

    Args:
        trainer: Whose rank zero writes.
        buffers: This rank's values, as of :func:`copied`.

    """
    written: list[Any] = [{name: _sum(buffer) for name, buffer in buffers_of(trainer).items()}]
    if trainer.world_size > 1:
        dist.broadcast_object_list(written, src=0)
    return {name: buffer for name, buffer in buffers.items() if written[0].get(name) != _sum(buffer)}


def restore_buffers(trainer: Any, buffers: dict[str, Tensor]) -> None:
    """Set those that :func:`differing` gave."""
    own = buffers_of(trainer)
    with torch.no_grad():
        for name, value in buffers.items():
            if name in own and own[name].shape == value.shape:
                own[name].copy_(value)


def _small(module: nn.Module, prefix: str) -> list[tuple[str, Tensor]]:
    found = module.named_buffers(prefix=prefix)
    return [(name, buffer) for name, buffer in found if type(buffer) is Tensor and buffer.numel() <= _LARGEST]


def _sum(buffer: Tensor) -> int:
    return zlib.crc32(buffer.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
