# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism within pipeline stages: matrices sharded by columns or rows.

Plain tensors instead of DTensors, because a stage is created at the first step, when the optimizer already has the
parameters: they stay the same objects, with a shard of their values. What each matrix computes is Megatron-LM's
(Shoeybi et al., 2019).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.plans import (
    BY_DIMENSION,
    BY_INPUTS,
    COLUMNS,
    ROWS,
    SUMMED,
    SUMMED_TAIL,
    count_own_heads,
)
from lightning_sagemaker.parallel.stage import Stages
from lightning_sagemaker.parallel.trace import ReplacedForwards


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
        copied = _CopiedOnce(groups.groups["TP"])
        for path, style in own.items():
            module = root.get_submodule(path)
            if style in WITH_SUMS:
                self._forwards.replace(module, WITH_SUMS[style](root, path, groups.groups["TP"]))
            else:
                self._share(module, style, copied)
        heads = [path for path, style in own.items() if style in (COLUMNS, ROWS)]
        self._undo_heads = count_own_heads(root, heads, self._degree)

    def _share(self, linear: Any, style: str, copied: _CopiedOnce) -> None:
        if style == COLUMNS:
            parameters, dim, forward = [linear.weight, linear.bias], 0, functools.partial(_by_columns, linear, copied)
        else:
            known: dict[str, Callable[..., Tensor]] = {BY_INPUTS: _by_inputs, BY_DIMENSION: _by_dimension}
            compute = known.get(style, _by_rows)
            group = self._groups.groups["TP"]
            parameters, dim, forward = [linear.weight], 1, functools.partial(compute, linear, group)
        for parameter in parameters:
            if parameter is not None:
                self._dims[id(parameter)] = dim
                parameter.data = self.part(parameter, parameter.data)
        if not self._stages.compute_by(linear, forward):
            self._forwards.replace(linear, forward)

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


def _by_columns(linear: nn.Linear, copied: _CopiedOnce, x: Tensor) -> Tensor:
    return F.linear(copied(x), linear.weight, linear.bias)


def _by_rows(linear: nn.Linear, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    total: Tensor = _Summed.apply(F.linear(x, linear.weight), group)  # type: ignore[no-untyped-call]
    return total if linear.bias is None else total + linear.bias


def _by_inputs(linear: nn.Linear, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    return _by_rows(linear, group, _Sliced.apply(x, group))  # type: ignore[no-untyped-call]


def _by_dimension(embedding: nn.Embedding, group: dist.ProcessGroup, numbers: Tensor) -> Tensor:
    own = F.embedding(numbers, embedding.weight, embedding.padding_idx, scale_grad_by_freq=embedding.scale_grad_by_freq)
    joined: Tensor = _Joined.apply(own, group)  # type: ignore[no-untyped-call]
    return joined


class _Context(Protocol):
    """The autograd context."""

    group: dist.ProcessGroup


class _CopiedOnce:
    """Query, key and value are computed from one tensor: its gradient is summed over the group once, not three times."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._last: tuple[Callable[[], Tensor | None], Callable[[], Tensor | None]] = (lambda: None, lambda: None)

    def __call__(self, x: Tensor) -> Tensor:
        if not x.requires_grad:
            return x
        last, copy = self._last[0](), self._last[1]()
        if last is x and copy is not None:
            return copy
        made: Tensor = _Copied.apply(x, self._group)  # type: ignore[no-untyped-call]
        self._last = (weakref.ref(x), weakref.ref(made))
        return made


class _Copied(torch.autograd.Function):
    """Identity; the gradients of all processes are summed."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Summed(torch.autograd.Function):
    """The sum over all processes; the gradient is passed through."""

    @staticmethod
    def forward(ctx: _Context, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Sliced(torch.autograd.Function):
    """This process's slice of the last dimension; the gradients are gathered."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _own_part(x, group)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        return _join_parts(gradient, ctx.group), None


class _Joined(torch.autograd.Function):
    """Gather along the last dimension; the gradient is sliced."""

    @staticmethod
    def forward(ctx: _Context, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _join_parts(part, group)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        return _own_part(gradient, ctx.group), None


def _with_summed_parameters(root: nn.Module, path: str, group: dist.ProcessGroup) -> Callable[..., object]:
    module = root.get_submodule(path)
    forward, names = module.forward, [name for name, _ in module.named_parameters(recurse=False)]

    @functools.wraps(forward)
    def run(*args: object, **kwargs: object) -> object:
        own = [(place, name, place[name]) for name in names for place in (_place_of(module, name),)]
        try:
            for place, name, parameter in own:
                place[name] = _Copied.apply(parameter, group)  # type: ignore[no-untyped-call]
            return forward(*args, **kwargs)
        finally:
            for place, name, parameter in own:
                place[name] = parameter

    return run


def _place_of(module: nn.Module, name: str) -> dict[str, nn.Parameter | None]:
    """Where a module finds a parameter: FSDP keeps a view of it as a plain attribute within a forward pass."""
    return vars(module) if name in vars(module) else module._parameters


def _with_summed_tail(root: nn.Module, path: str, group: dist.ProcessGroup) -> Callable[..., object]:
    module, size = root.get_submodule(path), cast("int", root.get_submodule(path.rpartition(".")[0]).qk_rope_head_dim)
    forward = module.forward

    @functools.wraps(forward)
    def run(*args: object, **kwargs: object) -> object:
        found: Tensor = forward(*args, **kwargs)
        return torch.cat([found[..., :-size], _Copied.apply(found[..., -size:], group)], dim=-1)  # type: ignore[no-untyped-call]

    return run


WITH_SUMS = {SUMMED: _with_summed_parameters, SUMMED_TAIL: _with_summed_tail}
"""Style -> the ``forward`` of the module by that name, whose gradients are summed over a group."""


def _own_part(whole: Tensor, group: dist.ProcessGroup) -> Tensor:
    return whole.chunk(dist.get_world_size(group), -1)[dist.get_rank(group)].contiguous()


def _join_parts(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    part = part.contiguous()
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part, group)
    return torch.cat(parts, -1)
