# SPDX-License-Identifier: Apache-2.0
"""This process's shard of a ``DTensor``."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor
from torch.distributed.tensor import DTensor

T = TypeVar("T")


def local_of(value: T) -> T | Tensor:
    """This process's shard of a ``DTensor``; other values unchanged."""
    return value.to_local() if isinstance(value, DTensor) else value


def with_local(like: DTensor, local: Tensor) -> DTensor:
    """A DTensor like another with a local tensor that is not moved; ``DTensor.from_local`` would copy it to a GPU."""
    return DTensor(local, like._spec, requires_grad=False)  # type: ignore[no-untyped-call]
