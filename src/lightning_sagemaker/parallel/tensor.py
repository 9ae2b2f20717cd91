# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism within pipeline stages: matrices sharded by columns or rows.

Plain tensors instead of DTensors, because a stage is created at the first step, when the optimizer already has the
parameters: they stay the same objects, with a shard of their values. What each matrix computes is Megatron-LM's
(Shoeybi et al., 2019).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from lightning_sagemaker._compat.dtensor import local_of
from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.plans import (
    BY_DIMENSION,
    BY_INPUTS,
    COLUMNS,
    OF_HEADS,
    PACKED,
    PER_HEAD,
    SUMMED,
    SUMMED_TAIL,
    count_own_heads,
)
from lightning_sagemaker.parallel.stage import Stages
from lightning_sagemaker.parallel.tensor_collectives import CopiedOnce, copied, joined, own_columns, sliced, summed
from lightning_sagemaker.parallel.trace import ReplacedForwards

_Wrapper: TypeAlias = Callable[[nn.Module, str, dist.ProcessGroup], Callable[..., object]]


class TensorParallelLinears:
    """The linear layers and embeddings of this process's stages, sharded across its ``TP`` group.

    Args:
        root: The module; all processes of the group have the same values.
        plan: Tensor parallel plan of :func:`~lightning_sagemaker.parallel.plans.tensor_plan`; may be empty.
        groups: Process groups of the job.
        stages: Stages of this process.

    """

    def __init__(self, root: nn.Module, plan: Mapping[str, str], groups: ParallelGroups, stages: Stages) -> None:
        self._groups, self._stages = groups, stages
        self._place, self._degree = groups.at.tensor, groups.degrees.tensor
        self._dims: dict[int, int] = {}
        self._mesh: DeviceMesh | None = None
        self._forwards = ReplacedForwards()
        own = {
            path: style
            for path, style in plan.items()
            if not any(map(stages.is_absent, root.get_submodule(path).parameters()))
        }
        once = CopiedOnce(groups.groups["TP"])
        for path, style in own.items():
            module = root.get_submodule(path)
            if style in WITH_SUMS:
                self._forwards.replace(module, WITH_SUMS[style](root, path, groups.groups["TP"]))
            else:
                self._share(module, style, once)
        heads = [path for path, style in own.items() if style in OF_HEADS]
        self._undo_heads = count_own_heads(root, heads, self._degree)

    def _share(self, layer: nn.Module, style: str, once: CopiedOnce) -> None:
        forward = sharded_forward(layer, style, once, self._groups.groups["TP"])
        for name, dim in sharded_dims(layer, style).items():
            parameter = layer.get_parameter(name)
            self._dims[id(parameter)] = dim
            parameter.data = self.part(parameter, parameter.data)
        if not self._stages.compute_by(layer, forward):
            self._forwards.replace(layer, forward)

    def remove(self) -> None:
        """Restore the layers' forward methods; their parameters stay sharded."""
        self._forwards.restore()
        self._undo_heads()

    def is_shared(self, parameter: Tensor) -> bool:
        """Whether a parameter is sharded."""
        return id(parameter) in self._dims

    def part(self, parameter: Tensor, value: Tensor) -> Tensor:
        """This process's shard of ``value``, a full parameter or optimizer state of the same shape."""
        if not self.is_shared(parameter) or not value.dim():
            return value
        return value.chunk(self._degree, self._dims[id(parameter)])[self._place].clone()

    def full_tensor(self, parameter: Tensor, value: Tensor) -> Tensor:
        """Gather the full tensor of the shard ``value``, on the CPU. Collective over the ``TP`` group."""
        value = value.detach().cpu()
        if not self.is_shared(parameter) or not value.dim():
            return value
        parts = [torch.empty_like(value) for _ in range(self._degree)]
        dist.all_gather(parts, value.contiguous(), self._groups.cpu_groups["TP"])
        return torch.cat(parts, self._dims[id(parameter)])

    def placed(self, parameter: Tensor, value: Tensor) -> Tensor:
        """``value`` as a DTensor, so that a distributed checkpoint knows its position in the full tensor."""
        if not self.is_shared(parameter) or not value.dim():
            return value
        if self._mesh is None:
            self._mesh = DeviceMesh.from_group(self._groups.groups["TP"], value.device.type)
        return DTensor.from_local(value.detach(), self._mesh, [Shard(self._dims[id(parameter)])])


def map_state(
    state: Mapping[str, Any], parameters: Iterable[nn.Parameter], change: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, Any]:
    """An optimizer's ``state_dict()`` with ``change`` applied to its tensors.

    Args:
        state: The result of :meth:`torch.optim.Optimizer.state_dict`; parameters of other stages have no entry.
        parameters: Parameters of the optimizer, in the order of its groups.
        change: Parameter and tensor -> the new tensor.

    """
    entries = {}
    for index, parameter in enumerate(parameters):
        if index in state["state"]:
            entries[index] = {
                key: change(parameter, value) if isinstance(value, Tensor) else value
                for key, value in state["state"][index].items()
            }
    return {**state, "state": entries}


def sharded_dims(layer: nn.Module, style: str) -> dict[str, int]:
    """Name of each parameter of a layer that is sharded -> the dimension.

    Args:
        layer: A linear layer, transformers' ``Conv1D`` or an embedding.
        style: Its style in the plan.

    """
    inputs = 0 if _is_transposed(layer) else 1
    if style != COLUMNS or isinstance(layer, nn.Embedding):
        return {"weight": inputs}
    return {"weight": 1 - inputs} | ({} if layer.bias is None else {"bias": 0})


def sharded_forward(
    layer: nn.Module, style: str, once: CopiedOnce, group: dist.ProcessGroup
) -> Callable[[Tensor], Tensor]:
    """The ``forward`` of a layer whose parameters are shards, plain tensors or ``DTensor``.

    Args:
        layer: The layer, before it is sharded.
        style: Its style in the plan.
        once: Copies of inputs, shared by the layers that may have the same input.
        group: Process group of the tensor parallel ranks.

    """
    if isinstance(layer, nn.Embedding):
        return functools.partial(_by_dimension if style == BY_DIMENSION else _by_heads, layer, group)
    linear = cast("nn.Linear", layer)
    if style == COLUMNS:
        return functools.partial(_by_columns, linear, once)
    if style == PACKED:
        outputs, inputs = _turned(linear, linear.weight).shape
        return functools.partial(_by_packed_columns, linear, once, group, outputs // inputs)
    return functools.partial(_by_inputs if style == BY_INPUTS else _by_rows, linear, group)


def _is_transposed(layer: nn.Module) -> bool:
    """Whether a layer is transformers' ``Conv1D``, whose weight is the transpose of a linear layer's."""
    return hasattr(layer, "nf")


def _turned(layer: nn.Module, weight: Tensor) -> Tensor:
    """Between the layout of a layer's weight and that of a linear layer, in either direction."""
    return weight.t() if _is_transposed(layer) else weight


def _by_columns(layer: nn.Linear, once: CopiedOnce, x: Tensor) -> Tensor:
    return F.linear(once(x), _turned(layer, local_of(layer.weight)), local_of(layer.bias))


def _by_packed_columns(layer: nn.Linear, once: CopiedOnce, group: dist.ProcessGroup, parts: int, x: Tensor) -> Tensor:
    """Columns of query, key and value in one matrix, of which each process stores rows: its columns are not contiguous."""
    rows = _turned(layer, local_of(layer.weight)).t()
    weight = own_columns(rows, group, parts).t()
    bias: Tensor | None = layer.bias
    if bias is not None:
        bias = copied(bias, group).view(parts, dist.get_world_size(group), -1)[:, dist.get_rank(group)].flatten()
    return F.linear(once(x), weight, bias)


def _by_rows(layer: nn.Linear, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    total = summed(F.linear(x, _turned(layer, local_of(layer.weight))), group)
    return total if layer.bias is None else total + layer.bias


def _by_inputs(layer: nn.Linear, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    return _by_rows(layer, group, sliced(x, group))


def _by_heads(embedding: nn.Embedding, _: dist.ProcessGroup, numbers: Tensor) -> Tensor:
    weight = local_of(embedding.weight)
    return F.embedding(numbers, weight, embedding.padding_idx, scale_grad_by_freq=embedding.scale_grad_by_freq)


def _by_dimension(embedding: nn.Embedding, group: dist.ProcessGroup, numbers: Tensor) -> Tensor:
    return joined(_by_heads(embedding, group, numbers), group)


def _with_parameters(change: Callable[[Tensor, dist.ProcessGroup], Tensor]) -> _Wrapper:
    def wrap(root: nn.Module, path: str, group: dist.ProcessGroup) -> Callable[..., object]:
        module = root.get_submodule(path)
        forward, names = module.forward, [name for name, _ in module.named_parameters(recurse=False)]

        @functools.wraps(forward)
        def run(*args: object, **kwargs: object) -> object:
            own = [(place, name, place[name]) for name in names for place in (_place_of(module, name),)]
            try:
                for place, name, parameter in own:
                    place[name] = change(parameter, group)
                return forward(*args, **kwargs)
            finally:
                for place, name, parameter in own:
                    place[name] = parameter

        return run

    return wrap


def _of_own_heads(parameter: Tensor, group: dist.ProcessGroup) -> Tensor:
    return copied(parameter, group).chunk(dist.get_world_size(group))[dist.get_rank(group)]


def _place_of(module: nn.Module, name: str) -> dict[str, Tensor]:
    """Where a module finds a parameter: FSDP keeps a view of it as a plain attribute within a forward pass."""
    return cast("dict[str, Tensor]", vars(module) if name in vars(module) else module._parameters)


def _with_summed_tail(root: nn.Module, path: str, group: dist.ProcessGroup) -> Callable[..., object]:
    module, size = root.get_submodule(path), cast("int", root.get_submodule(path.rpartition(".")[0]).qk_rope_head_dim)
    forward = module.forward

    @functools.wraps(forward)
    def run(*args: object, **kwargs: object) -> object:
        found: Tensor = forward(*args, **kwargs)
        return torch.cat([found[..., :-size], copied(found[..., -size:], group)], dim=-1)

    return run


WITH_SUMS: Mapping[str, _Wrapper] = {
    SUMMED: _with_parameters(copied),
    PER_HEAD: _with_parameters(_of_own_heads),
    SUMMED_TAIL: _with_summed_tail,
}
"""Style -> the ``forward`` of the module by that name, whose gradients are summed over a group."""
