# SPDX-License-Identifier: Apache-2.0
"""torch's sharded parameters, wherever this version has them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor

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


def total_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """The 2-norm of all gradients, of one device mesh, as ``torch.nn.utils.get_total_norm`` of torch 2.6."""
    norms = torch._foreach_norm(list(gradients))
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def with_local(like: DTensor, local: torch.Tensor) -> DTensor:
    """A DTensor like another with a local tensor that is not moved; ``DTensor.from_local`` would copy it to a GPU."""
    return DTensor(local, like._spec, requires_grad=False)  # type: ignore[no-untyped-call]


__all__ = [
    "SHARDS_ON_CPU",
    "CPUOffloadPolicy",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "fully_shard",
    "register_fsdp_forward_method",
    "total_norm",
    "with_local",
]
