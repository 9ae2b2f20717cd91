# SPDX-License-Identifier: Apache-2.0
"""Which tensors a process group sends: one of nccl alone takes none of the CPU."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def device_for(group: dist.ProcessGroup | None = None) -> torch.device:
    """The CPU if a group sends its tensors, else the current GPU.

    Args:
        group: None: the default group.

    """
    if "cpu" in str(dist.get_backend_config(group)):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def broadcast(tensor: Tensor, source: int, group: dist.ProcessGroup | None = None) -> None:
    """Broadcast in place, by way of the GPU if the group sends nothing else. Collective.

    Args:
        tensor: On any device.
        source: Global rank of the process whose values all receive.
        group: None: the default group.

    """
    is_sent = tensor.device.type != "cpu" or device_for(group).type == "cpu"
    sent = tensor if is_sent else tensor.to(device_for(group))
    dist.broadcast(sent, source, group)
    if not is_sent:
        tensor.copy_(sent)
