# SPDX-License-Identifier: Apache-2.0
"""``sharded_data_parallel_degree``: parameters, gradients and optimizer states are sharded across replicas (FSDP2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.utils.weak import WeakTensorKeyDictionary

from lightning_sagemaker._compat.param_groups import parameters_in
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees
from lightning_sagemaker.parallel.sharding import clip_norm, make_mesh, shard_module
from lightning_sagemaker.parallel.tensor import map_state

if TYPE_CHECKING:
    from lightning_sagemaker._types import StateDict


T = TypeVar("T")


class ShardedParameters:
    """Sharded parameters of a model, each block of which is gathered and freed as a unit.

    Args:
        module: The model, equal on all processes; its parameters are replaced.
        degrees: Parallel degrees, with the number of processes that shard the parameters.
        device: Device of this process.

    """

    def __init__(self, module: nn.Module, degrees: ParallelDegrees, device: torch.device) -> None:
        self._module = module
        before = dict(module.named_parameters())
        shard_module(module, make_mesh(degrees, dist.get_world_size(), device.type), ())
        after = dict(module.named_parameters())
        self._successors = WeakTensorKeyDictionary()
        for name, parameter in before.items():
            self._successors[parameter] = after[name]

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Replace the parameters of an optimizer that was built before the model was wrapped by the sharded ones.

        Raises:
            ParallelConfigError: If it has stepped already.

        """
        for group in optimizer.param_groups:
            if any(one in self._successors and one in optimizer.state for one in group["params"]):
                raise ParallelConfigError(
                    "the optimizer stepped before the model was sharded (sharded_data_parallel_degree). HINT: build it"
                    " from the parameters of smp.DistributedModel."
                )
            successor: Callable[[nn.Parameter, nn.Parameter], nn.Parameter] = self._successors.get
            group["params"] = [successor(one, one) for one in group["params"]]

    def clip_norm(self, max_norm: float) -> Tensor:
        """Clip the global gradient norm; returns the norm before. Collective over all processes."""
        return clip_norm(self._module.parameters(), max_norm)

    def full_state(self, state: Mapping[str, object], gather_to_rank0: bool) -> StateDict:
        """A state of the module with full tensors. Collective over all processes."""
        full = {name: full_tensor_of(value) for name, value in state.items()}
        return {} if gather_to_rank0 and dist.get_rank() else full

    def load(self, content: Mapping[str, object], is_partial: bool, strict: bool) -> object:
        """Load a state of full tensors, or of this process's shards."""
        change = shard_of if is_partial else part_of
        own = self._module.state_dict()
        return self._module.load_state_dict(
            {name: change(own[name], value) if name in own else value for name, value in content.items()}, strict=strict
        )

    def map_optimizer(self, optimizer: torch.optim.Optimizer, change: Callable[[Tensor], Tensor]) -> StateDict:
        """An optimizer's state with ``change`` applied to its tensors."""
        return map_state(optimizer.state_dict(), parameters_in(optimizer.param_groups), lambda _, value: change(value))

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, content: Mapping[str, object], is_partial: bool
    ) -> StateDict:
        """A state that the optimizer can load, from full tensors or from this process's shards."""
        return map_state(content, parameters_in(optimizer.param_groups), shard_of if is_partial else part_of)


def full_tensor_of(value: T) -> T | Tensor:
    """The full tensor of this process's shard, on the CPU. Collective over its ranks."""
    return value.full_tensor().cpu() if isinstance(value, DTensor) else value


def part_of(parameter: Tensor, value: T) -> T | Tensor:
    """This process's shard of a full tensor that belongs to a parameter. Not collective.

    Args:
        parameter: The parameter; if it is not sharded, ``value`` is returned unchanged.
        value: Value of the parameter, or an optimizer state of its shape; others are returned unchanged.

    """
    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    place = parameter.device_mesh.get_coordinate()
    assert place is not None
    local: Tensor = value
    for size, at, placement in zip(parameter.device_mesh.shape, place, parameter.placements, strict=True):
        if isinstance(placement, Shard):
            chunks = local.chunk(size, placement.dim)
            local = chunks[at] if at < len(chunks) else local.narrow(placement.dim, 0, 0)
    return shard_of(parameter, local)


def shard_of(parameter: Tensor, local: T) -> T | Tensor:
    """This process's shard of a tensor that belongs to a parameter, as a DTensor."""
    if not isinstance(parameter, DTensor) or not isinstance(local, Tensor) or not local.dim():
        return local
    return DTensor.from_local(
        local.to(parameter.device).clone(),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
