# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.dataparallel.torch.parallel.distributed``: the wrapper of SMDDP 1.0 to 1.3."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

import torch

from lightning_sagemaker.smdistributed.dataparallel.torch.distributed import check_group

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


_BUCKET_CAP_MB = 25
"""Default size of a gradient bucket in MiB, that of AWS and torch."""


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """Averages the gradients of all processes during the backward pass; the wrapped model is ``module``.

    Args:
        module: The same model on every process, on one device, its parameters registered in the same order.
        device_ids: The one CUDA device of ``module``; None or empty for a module on the CPU.
        output_device: As in torch.
        broadcast_buffers: Send rank 0's buffers to all before each forward pass.
        process_group: The default group, or None for it.
        bucket_cap_mb: Size of a gradient bucket in MiB.

    Raises:
        RuntimeError: If ``process_group`` is not the default group.

    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: list[int] | None = None,
        output_device: int | torch.device | None = None,
        broadcast_buffers: bool = True,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: int | None = None,
    ) -> None:
        warnings.warn(
            "smdistributed.dataparallel.torch.parallel.DistributedDataParallel is deprecated since SMDDP 1.4.0. Use"
            " torch.nn.parallel.DistributedDataParallel with torch.distributed's backend 'smddp'.",
            DeprecationWarning,
            stacklevel=2,
        )
        check_group(process_group)
        make = functools.partial(
            super().__init__,
            module,
            device_ids=device_ids or None,
            output_device=output_device,
            bucket_cap_mb=_BUCKET_CAP_MB if bucket_cap_mb is None else bucket_cap_mb,
        )
        if broadcast_buffers:  # the default; naming it is deprecated in torch 2.13
            make()
        else:
            make(broadcast_buffers=False)
