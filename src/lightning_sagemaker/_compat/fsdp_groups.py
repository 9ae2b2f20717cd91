# SPDX-License-Identifier: Apache-2.0
"""Moves modules that FSDP2 has sharded to another process group, after a failed step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _register_process_group
from torch.distributed.device_mesh import DeviceMesh

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker._compat.sharding import FSDPModule

CAN_BEGIN_AGAIN = hasattr(FSDPModule, "reset_iter_state")
"""Whether this version of torch can reset a failed forward or backward pass."""


class _MeshInfo(Protocol):
    shard_process_group: dist.ProcessGroup


class _Parameter(Protocol):
    sharded_param: nn.Parameter
    unsharded_accumulated_grad: torch.Tensor | None


class _Unit(Protocol):
    """Parameters that are gathered together."""

    mesh_info: _MeshInfo
    fsdp_params: list[_Parameter]
    _all_gather_result: object


def check_names(module: nn.Module, mesh: DeviceMesh) -> None:
    """Check the private names that are assigned here: assigning a renamed one would have no effect.

    Raises:
        NameGone: If this version of torch has other names.

    """
    require(mesh, "_dim_group_names", "_pg_registry")
    for unit in _units(module):
        require(unit, "_all_gather_result", "fsdp_params", "mesh_info")
        require(unit.mesh_info, "shard_process_group")
        for parameter in unit.fsdp_params:
            require(parameter, "sharded_param", "unsharded_accumulated_grad")


def move_to(group: dist.ProcessGroup, mesh: DeviceMesh, modules: Iterable[nn.Module]) -> None:
    """Make modules use another process group, with the same size and rank.

    Args:
        group: The group, possibly of other ranks and with another name.
        mesh: Device mesh of the modules, whose operations look the group up by name.
        modules: Modules that are sharded on this mesh.

    """
    (name,) = mesh._dim_group_names
    if group.group_name != name:
        _register_process_group(name, group)
    mesh._pg_registry[name] = group
    for module in modules:
        for unit in _units(module):
            unit.mesh_info.shard_process_group = group


def sharded_parameters(module: nn.Module) -> list[nn.Parameter]:
    """A module's sharded parameters, as an optimizer has them, even if gathered ones are registered after an evaluation."""
    return [parameter.sharded_param for unit in _units(module) for parameter in unit.fsdp_params]


def begin_again(module: nn.Module) -> None:
    """Reset a module after a failed forward or backward pass: its parameters are resharded."""
    for unit in _units(module):
        unit._all_gather_result = None  # waiting for it would fail again
        for parameter in unit.fsdp_params:
            if "unsharded_accumulated_grad" in vars(parameter):  # from torch 2.15 on the gathered parameter's own
                parameter.unsharded_accumulated_grad = None
            if (gathered := getattr(parameter, "_unsharded_param", None)) is not None:
                gathered.grad = None
    if isinstance(module, FSDPModule) and module._get_fsdp_state()._is_root:  # set by its first call
        module.reset_iter_state()


def _units(module: nn.Module) -> Iterator[_Unit]:
    for part in module.modules():
        if isinstance(part, FSDPModule):
            yield from cast("Iterable[_Unit]", part._get_fsdp_state()._fsdp_param_groups)
