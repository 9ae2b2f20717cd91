# SPDX-License-Identifier: Apache-2.0
"""torch's sharded parameters, wherever this version has them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lightning_sagemaker._compat.guard import require

try:
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )
except ImportError:  # before torch 2.6
    from torch.distributed._composable.fsdp import (
        CPUOffloadPolicy,
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

SHARDS_ON_CPU = hasattr(torch.distributed.fsdp, "fully_shard")
"""Whether parameters on a CPU can be sharded; before torch 2.6 the engine needs CUDA's streams."""


def announce_backward(unit: FSDPModule, output: object) -> object:
    """What a part of a unit returned; its backward pass is one of the unit, whose gradients are reduced at its end."""
    state = unit._get_fsdp_state()
    require(state, "_register_pre_backward_hook")
    return state._register_pre_backward_hook(output)


def total_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """The 2-norm of all gradients, of one device mesh, as ``torch.nn.utils.get_total_norm`` of torch 2.6."""
    norms = torch._foreach_norm(list(gradients))
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


__all__ = [
    "SHARDS_ON_CPU",
    "CPUOffloadPolicy",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "announce_backward",
    "fully_shard",
    "register_fsdp_forward_method",
    "total_norm",
]
