# SPDX-License-Identifier: Apache-2.0
"""Buffers that differ between ranks, such as statistics of BatchNorm, of which a checkpoint has rank zero's only.

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
from lightning_sagemaker.checkpoint.module_walk import Children, named_buffers, named_modules

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer


LARGEST = 1 << 20
"""Maximum elements of a buffer: larger ones are constant tables."""


def buffers_of(trainer: Trainer, children: Children | None = None) -> dict[str, Tensor]:
    """Buffers of the module and of modules kept by callbacks, by name.

    Args:
        trainer: The Trainer.
        children: :func:`~.module_walk.named_modules` of its module, if already computed.

    """
    found = _buffers(named_modules(trainer.lightning_module) if children is None else children, "module")
    for number, callback in enumerate(callbacks_of(trainer)):
        found |= buffers_in(vars(callback), f"{number}.")
    return found


def buffers_in(modules: Mapping[str, object], prefix: str = "") -> dict[str, Tensor]:
    """Buffers of the modules among some values, by name."""
    found: dict[str, Tensor] = {}
    for name, module in modules.items():
        if isinstance(module, nn.Module):
            found |= _buffers(named_modules(module), prefix + name)
    return found


def _buffers(children: Children, prefix: str) -> dict[str, Tensor]:
    named = named_buffers(children)
    return {f"{prefix}.{name}": one for name, one in named if type(one) is Tensor and one.numel() <= LARGEST}


def copied(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the current values, on the CPU."""
    found = {name: one.detach().clone() for name, one in buffers.items() if one.device.type == "cpu"}
    for kind in dict.fromkeys((one.device, one.dtype) for one in buffers.values() if one.device.type != "cpu"):
        of_kind = {name: one for name, one in buffers.items() if (one.device, one.dtype) == kind}
        found |= dict(zip(of_kind, fetched([*of_kind.values()]), strict=True))
    return found


def fetched(tensors: list[Tensor]) -> list[Tensor]:
    """Copies on the CPU of tensors of one device and dtype, in one transfer, as each transfer waits for the GPU."""
    flat = torch.cat([one.detach().reshape(-1) for one in tensors]).cpu()
    parts = torch.split(flat, [one.numel() for one in tensors])
    return [part.view(one.shape).clone() for part, one in zip(parts, tensors, strict=True)]


def differing(own: dict[str, Tensor], buffers: dict[str, Tensor], world_size: int) -> dict[str, Tensor]:
    """The entries of ``buffers`` that differ from rank zero's. Collective.

    Args:
        own: Buffers of this rank.
        buffers: Values of the buffers when the state was recorded, from :func:`copied`.
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


def repeats(tensor: Tensor) -> bool:
    """Whether elements share memory, as after ``expand``: such a tensor cannot be written to."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _sum(buffer: Tensor) -> int:
    return zlib.crc32(buffer.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
