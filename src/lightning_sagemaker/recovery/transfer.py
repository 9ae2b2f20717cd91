# SPDX-License-Identifier: Apache-2.0
"""Transfers a training state from one rank's memory to another's: plain containers first, then each tensor."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist


class _Place:
    """Placeholder of a tensor in the containers."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = tuple(tensor.shape), tensor.dtype, tensor.device.type


def send(state: Any, to: int) -> None:
    """Send ``state``, of plain containers and tensors, to a rank of the default group."""
    tensors: list[torch.Tensor] = []
    skeleton = _replaced(state, tensors)
    buffer = io.BytesIO()
    torch.save(skeleton, buffer)
    head = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    dist.send(torch.tensor([head.numel()]), to)
    dist.send(head, to)
    for tensor in tensors:
        if tensor.numel():
            dist.send(tensor.detach().contiguous(), to)


def receive(source: int, device: torch.device) -> Any:
    """Receive a state that :func:`send` sends.

    Args:
        source: Sending rank of the default group.
        device: Device for tensors that are on an accelerator at the source.

    """
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, source)
    head = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(head, source)
    # Unpickles as torch's all_gather_object does: the sender is a rank of this job, and the state may hold any objects.
    skeleton = torch.load(io.BytesIO(head.numpy().tobytes()), weights_only=False)
    return _filled(skeleton, source, device)


def _replaced(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Place(value)
    if isinstance(value, dict):
        return type(value)((key, _replaced(entry, tensors)) for key, entry in value.items())
    if type(value) in (list, tuple):
        return type(value)(_replaced(entry, tensors) for entry in value)
    return value


def _filled(value: Any, source: int, device: torch.device) -> Any:
    if isinstance(value, _Place):
        tensor = torch.empty(value.shape, dtype=value.dtype, device="cpu" if value.device == "cpu" else device)
        if tensor.numel():
            dist.recv(tensor, source)
        return tensor
    if isinstance(value, dict):
        return type(value)((key, _filled(entry, source, device)) for key, entry in value.items())
    if type(value) in (list, tuple):
        return type(value)(_filled(entry, source, device) for entry in value)
    return value
