# SPDX-License-Identifier: Apache-2.0
"""Buffers that differ between ranks, as statistics of BatchNorm do: a checkpoint holds those of rank zero only.

DDP broadcasts rank zero's before a training step, but validation uses each rank's own, and so do weight averages kept
by callbacks.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker.checkpoint.module_walk import named_buffers, named_modules

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer


LARGEST = 1 << 20
"""Elements of a buffer: larger ones are constant tables."""


def buffers_of(trainer: Trainer) -> dict[str, Tensor]:
    """Buffers of the module and of modules kept by callbacks, by name."""
    modules = {"module": trainer.lightning_module}
    for number, callback in enumerate(callbacks_of(trainer)):
        modules |= {f"{number}.{name}": value for name, value in vars(callback).items()}
    return buffers_in(modules)


def buffers_in(modules: Mapping[str, object]) -> dict[str, Tensor]:
    """Buffers of those values that are modules, by name."""
    found: dict[str, Tensor] = {}
    for prefix, module in modules.items():
        if isinstance(module, nn.Module):
            named = named_buffers(named_modules(module, prefix))
            found |= {name: buffer for name, buffer in named if type(buffer) is Tensor and buffer.numel() <= LARGEST}
    return found


def copied(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their values now, on the CPU."""
    return {name: buffer.detach().cpu().clone() for name, buffer in buffers.items()}


def differing(own: dict[str, Tensor], buffers: dict[str, Tensor], world_size: int) -> dict[str, Tensor]:
    """Those of ``buffers`` that differ from rank zero's. Collective.

    Args:
        own: This rank's.
        buffers: Their values when the state was recorded, from :func:`copied`.
        world_size: Number of ranks.

    """
    written: list[dict[str, int]] = [{name: _sum(buffer) for name, buffer in own.items()}]
    if world_size > 1:
        dist.broadcast_object_list(written, src=0)
    return {name: buffer for name, buffer in buffers.items() if written[0].get(name) != _sum(buffer)}


def restore_buffers(own: dict[str, Tensor], buffers: dict[str, Tensor]) -> None:
    """Restore this rank's buffers from :func:`differing`."""
    with torch.no_grad():
        for name, value in buffers.items():
            if name in own and own[name].shape == value.shape:
                own[name].copy_(value)


def _sum(buffer: Tensor) -> int:
    return zlib.crc32(buffer.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
