# SPDX-License-Identifier: Apache-2.0
"""``DistributedDataParallel(model, device_ids=[local_rank])`` in a rehearsal without GPUs, where the model is on the CPU.

Scripts for GPUs name the rank's device there, ``transformers.Trainer`` in SMDDP jobs as well, and torch refuses a device for
a module on the CPU. The device means nothing here, so it is left out, and one line says so.
"""

from __future__ import annotations

import functools
import logging
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)


def accept_devices(module: ModuleType) -> None:
    """Have the class accept devices for a module on the CPU.

    Args:
        module: ``torch.nn.parallel.distributed``.

    """
    kind = module.DistributedDataParallel
    made = kind.__init__

    @functools.wraps(made)
    def __init__(
        self: object,
        module: torch.nn.Module,
        device_ids: list[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        *arguments: object,
        **options: object,
    ) -> None:
        if (device_ids or output_device is not None) and _is_on_cpu(module):
            _log_once(f"device_ids={device_ids}" if device_ids else f"output_device={output_device}")
            device_ids = output_device = None
        made(self, module, device_ids, output_device, *arguments, **options)

    kind.__init__ = __init__


def _is_on_cpu(module: torch.nn.Module) -> bool:
    import torch

    return not torch.cuda.is_available() and all(one.device.type == "cpu" for one in module.parameters())


@functools.cache
def _log_once(device: str) -> None:
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_rank() == 0:
        _log.warning(
            "DistributedDataParallel was given %s; this machine has no GPU, and the module stays on the CPU.", device
        )
