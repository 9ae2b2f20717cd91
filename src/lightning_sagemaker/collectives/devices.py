# SPDX-License-Identifier: Apache-2.0
"""The device of the tensors that a process group supports: a group with nccl alone refuses CPU tensors."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def device_for(group: dist.ProcessGroup | None = None) -> torch.device:
    """The CPU if the group supports CPU tensors, else the current GPU.

    Args:
        group: Process group; the default group if None.

    """
    if "cpu" in str(dist.get_backend_config(group)):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def broadcast(tensor: Tensor, source: int, group: dist.ProcessGroup | None = None) -> None:
    """Broadcast in place, through the GPU if the group supports no CPU tensors. Collective.

    Args:
        tensor: Tensor of any shape, on any device.
        source: Global rank that broadcasts.
        group: Process group; the default group if None.

    """
    is_sent = tensor.device.type != "cpu" or device_for(group).type == "cpu"
    sent = tensor if is_sent else tensor.to(device_for(group))
    dist.broadcast(sent, source, group)
    if not is_sent:
        tensor.copy_(sent)
