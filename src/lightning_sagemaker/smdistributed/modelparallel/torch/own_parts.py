# SPDX-License-Identifier: Apache-2.0
"""This process's part of a distributed model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_sagemaker.parallel.degrees import PipelineError
from lightning_sagemaker.smdistributed.modelparallel.torch.sharded import ShardedParameters, full_tensor_of
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state

if TYPE_CHECKING:
    from lightning_sagemaker._types import StateDict
    from lightning_sagemaker.parallel.model import PipelinedModel
    from lightning_sagemaker.parallel.script_clipping import ScriptClipping


class OwnParts:
    """Mixin of ``DistributedModel``: AWS's methods about this process's part."""

    module: nn.Module
    sharded: ShardedParameters | None
    _pipeline: PipelinedModel | None
    _is_in_step: bool
    _clipping: ScriptClipping | None = None

    @property
    def own(self) -> list[nn.Parameter]:
        """The parameters of this process; all, before the model is partitioned."""
        return list(self.module.parameters()) if self._pipeline is None else self._pipeline.parameters

    def local_parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The parameters of this process."""
        return iter(self.own)

    def local_named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of this process, with their names in the user's model."""
        own = {id(parameter) for parameter in self.own}
        return ((name, parameter) for name, parameter in self.module.named_parameters(prefix) if id(parameter) in own)

    virtual_named_parameters = local_named_parameters

    def local_buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers of the model: every stage has them."""
        return self.module.buffers()

    def local_named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """All buffers of the model with their names: every stage has them."""
        return self.module.named_buffers(prefix)

    def local_named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Modules with a parameter of this process, or without any."""
        own = {id(parameter) for parameter in self.own}
        for name, module in self.module.named_modules():
            parameters = list(module.parameters())
            if not parameters or any(id(parameter) in own for parameter in parameters):
                yield name, module

    def local_modules(self) -> Iterator[nn.Module]:
        """See :meth:`local_named_modules`."""
        return (module for _, module in self.local_named_modules())

    def is_distributed_parameter(self, parameter: nn.Parameter) -> bool:
        """Whether tensor parallelism shards this parameter."""
        return self.is_shared(parameter)

    def is_distributed_buffer(self, buffer: Tensor) -> bool:
        """Always false: no buffer is sharded."""
        return False

    is_scaled_batch_parameter, is_scaled_batch_buffer = is_distributed_parameter, is_distributed_buffer

    def distributed_modules(self) -> Iterator[nn.Module]:
        """Modules with a matrix that tensor parallelism shards."""
        for module in self.module.modules():
            if any(self.is_shared(parameter) for parameter in module.parameters(recurse=False)):
                yield module

    def default_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters whose gradients are averaged over ``DP_GROUP``: those that tensor parallelism does not shard."""
        return ((name, one) for name, one in self.local_named_parameters() if not self.is_shared(one))

    def scaled_batch_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters whose gradients are averaged over ``RDP_GROUP``: those that tensor parallelism shards."""
        return ((name, one) for name, one in self.local_named_parameters() if self.is_shared(one))

    def part_of(self, parameter: Tensor | None, value: object) -> object:
        """This process's shard of a full parameter, or of its optimizer state; shards are returned unchanged."""
        if self._pipeline is None or parameter is None or not isinstance(value, Tensor):
            return value
        return value if value.shape == parameter.shape else self._pipeline.linears.part(parameter, value)

    def is_shared(self, parameter: Tensor) -> bool:
        """Whether tensor parallelism shards this parameter."""
        return self._pipeline is not None and self._pipeline.linears.is_shared(parameter)

    def clip_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip gradients by their global norm; returns the norm before. Collective over the replica.

        Raises:
            PipelineError: In a step, where the other stages do not get there, and no gradient is complete.

        """
        if self.sharded is not None:
            return self.sharded.clip_norm(max_norm)
        if self._pipeline is None:
            return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
        if self._is_in_step:
            raise PipelineError(
                "clip_grad_norm_ was called in a step. HINT: call it after the step, before optimizer.step."
            )
        return self._pipeline.clip_norm(parameters, max_norm, norm_type)

    def stop_clipping(self) -> None:
        """Give torch's function back to the script; the model is not partitioned any more, or another takes its place."""
        if self._clipping is not None:
            self._clipping.restore()
            self._clipping = None

    def gather_optimizer(self, optimizer: torch.optim.Optimizer) -> StateDict:
        """The full optimizer state on all processes of the replica. Collective over it."""
        if self.sharded is not None:
            return self.sharded.map_optimizer(optimizer, full_tensor_of)
        if self._pipeline is None:
            return optimizer.state_dict()
        merged: list[StateDict] = [self._pipeline.gather_optimizer(optimizer)]
        dist.broadcast_object_list(merged, state.groups.pipeline_ranks[0], state.groups.cpu_groups["PP"])
        return merged[0]


def load_present(module: nn.Module, content: Mapping[str, object], absent: Collection[str], strict: bool) -> object:
    """Load this process's part of a model's state.

    Args:
        module: The model.
        content: State without the entries of other processes.
        absent: Names of the entries of other processes.
        strict: Whether all other names must be those of the model.

    Raises:
        RuntimeError: If ``strict``, and names are missing or unexpected.

    """
    found = module.load_state_dict(content, strict=False)
    missing = [name for name in found.missing_keys if name not in absent]
    if strict and (missing or found.unexpected_keys):
        raise RuntimeError(f"missing in the state: {missing}; not in the model: {found.unexpected_keys}")
    return found
