# SPDX-License-Identifier: Apache-2.0
"""Shards of weights and optimizer states as plain tensors, which are sent to a rank that has the same shards."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from lightning_sagemaker._compat.dtensor import with_local
from lightning_sagemaker._compat.param_groups import parameters_in

_SHARD = "shard of a DTensor"
"""Marks a shard, in a tuple with its tensor."""


def encode(value: Any) -> Any:
    """Replace each ``DTensor`` in plain containers by this rank's shard of it, marked."""
    if isinstance(value, DTensor):
        return _SHARD, value.to_local()
    if isinstance(value, dict):
        return {key: encode(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(encode(entry) for entry in value)
    return value


def decode(state: dict[str, Any], like: dict[str, Tensor]) -> dict[str, Any]:
    """Decode a module's state dict that :func:`encode` has encoded on another rank.

    Args:
        state: Name -> a tensor, or a marked shard.
        like: Name -> the tensor here.

    """
    return {name: _decoded(value, like.get(name)) for name, value in state.items()}


def decode_states(state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Decode an optimizer's state dict, whose tensors are sharded like their parameters.

    Args:
        state: The other rank's ``state_dict``, encoded by :func:`encode`.
        optimizer: The optimizer of this rank.

    """
    parameters = parameters_in(optimizer.param_groups)
    states = {
        number: {name: _decoded(value, parameters[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": states}


def _decoded(value: Any, like: Tensor | None) -> Any:
    if isinstance(value, tuple) and len(value) == 2 and value[0] == _SHARD:
        assert isinstance(like, DTensor)
        return with_local(like, value[1])
    return value
