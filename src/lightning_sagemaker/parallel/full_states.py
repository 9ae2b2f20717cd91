# SPDX-License-Identifier: Apache-2.0
"""Loading a full state dict into a sharded module, as code that was written for DDP does after training.

``load_state_dict`` of FSDP2 takes shards only, so libraries that load their best checkpoint after ``fit`` would fail there.
"""

from __future__ import annotations

from inspect import signature

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

_LOCALLY = {"src_data_rank": None} if "src_data_rank" in signature(distribute_tensor).parameters else {}
"""Each rank slices its own value, without communication; the oldest torch versions broadcast rank 0's instead."""


def take_full_states(root: nn.Module) -> None:
    """Make ``root`` and its submodules shard the tensors of a full state dict when they load it.

    Args:
        root: A module whose parameters are ``DTensor``s, at least in part.

    """
    for module in root.modules():
        module.register_load_state_dict_pre_hook(_shard_values)  # type: ignore[no-untyped-call]


def _shard_values(module: nn.Module, state: dict[str, object], prefix: str, *_: object) -> None:
    """Hook called before ``module`` loads its parameters, with a copy of the dict. torch raises if a shape is wrong."""
    for name, parameter in module.named_parameters(recurse=False):
        value = state.get(prefix + name)
        if not isinstance(parameter, DTensor) or not isinstance(value, Tensor) or isinstance(value, DTensor):
            continue
        if value.shape == parameter.shape:
            full = value.detach().to(parameter.device)
            state[prefix + name] = distribute_tensor(full, parameter.device_mesh, parameter.placements, **_LOCALLY)
