# SPDX-License-Identifier: Apache-2.0
"""A module that is partitioned into the stages of a pipeline, from the first step on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_sagemaker._compat.param_groups import parameters_in
from lightning_sagemaker.collectives.agreement import run_and_sync_errors
from lightning_sagemaker.collectives.devices import broadcast
from lightning_sagemaker.parallel import gradients
from lightning_sagemaker.parallel.activations import save_memory
from lightning_sagemaker.parallel.chain import Ends, find_cut
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.delayed import is_delayed, materialize, prepare
from lightning_sagemaker.parallel.engine import PipelineEngine
from lightning_sagemaker.parallel.groups import ParallelGroups, broadcast_from_first
from lightning_sagemaker.parallel.overlap import OverlappedReduction
from lightning_sagemaker.parallel.plans import tensor_plan
from lightning_sagemaker.parallel.stage import Stages
from lightning_sagemaker.parallel.tensor import TensorParallelLinears, map_state
from lightning_sagemaker.parallel.tied import TiedParameters

_MEMORY_WEIGHT = {"memory": 0.8, "speed": 0.2}
"""AWS's defaults (SDK documentation of ``memory_weight``)."""


class PipelinedModel:
    """A module whose stages are distributed over processes. Collective: all processes of the job create it in the same step.

    Args:
        root: The module with all parameters, complete on this process or on the meta device.
        groups: Process groups of the job.
        device: Device of this process.
        step: The user's code for one microbatch.
        microbatch: The argument of ``step``.
        stages_per_rank: Stages per process.
        ends: Number of blocks up to the end of each stage, or a function that returns these; default: balanced costs.
        recompute: Activation checkpointing: blocks save only their inputs and are recomputed in the backward pass.
        plan: Returns the tensor parallel plan of ``root``; default: ours.

    Attributes:
        blocks: Blocks of the module.
        partition: The blocks and parameters of each stage.
        stages: Stages of this process.
        engine: Runs steps.
        tied: Parameters of several stages.
        was_delayed: Whether parameters were on the meta device, so that the full model need not fit into memory.
        linears: Tensor parallel layers of this process's stages.
        reduction: Averages gradients over the replicas during the backward passes; None if there is one replica.

    Raises:
        ParallelConfigError: If the module cannot be partitioned; on all processes, before anything is changed.

    """

    def __init__(
        self,
        root: nn.Module,
        groups: ParallelGroups,
        device: torch.device,
        step: Callable[[Any], Any],
        microbatch: Any,
        *,
        stages_per_rank: int = 1,
        ends: Ends = None,
        recompute: bool = False,
        plan: Callable[[nn.Module], Mapping[str, str]] | None = None,
    ) -> None:
        ranks = len(groups.pipeline_ranks)
        degrees = groups.degrees
        self._root, self._groups = root, groups
        weight = _MEMORY_WEIGHT[degrees.optimize] if degrees.memory_weight is None else degrees.memory_weight
        num_stages = ranks * stages_per_rank
        prepare(root)
        self.blocks, traced, self.partition = find_cut(root, step, microbatch, num_stages, weight, ends)
        self._called, self._reason = traced.called, traced.reason
        if stages_per_rank > 1 and not traced.alike:
            raise ParallelConfigError(
                f"stages_per_rank={stages_per_rank} was set, but the parts of {self.blocks.name} return tensors of different"
                " shapes. HINT: set it to 1."
            )
        shared: Mapping[str, str] = {}
        if degrees.tensor > 1:  # refuses before anything is changed
            shared = tensor_plan(root, degrees.tensor) if plan is None else plan(root)
        own = tuple(range(groups.at.pipeline, num_stages, ranks))
        self._materialize(own)
        self._saving = save_memory(self.blocks.modules, recompute, degrees.offload_activations, device.type == "cuda")
        self.stages = Stages(root, self.blocks, traced, self.partition, own, device)
        self.engine = PipelineEngine(self.stages, self.partition, groups, device)
        self.tied = TiedParameters(root, self.partition, groups)
        self._make_equal()
        self._copies: list[tuple[nn.Module, Any]] = []
        self.linears = TensorParallelLinears(root, shared, groups, self.stages)
        self.reduction = self._make_reduction(own)

    def _materialize(self, own: Sequence[int]) -> None:
        """Give the parameters of this process's stages their values, if they are on the meta device. Collective."""

        def action() -> None:
            materialize(self._root, lambda name: not set(own).isdisjoint(self.partition.stages[name]))

        self.was_delayed = is_delayed(self._root)
        if self.was_delayed:
            run_and_sync_errors(action, self._groups.cpu_groups["MP"])

    def _make_reduction(self, own: Sequence[int]) -> OverlappedReduction | None:
        group = self._groups.groups["RDP"]
        if dist.get_world_size(group) == 1:
            return None
        names = {id(parameter): name for name, parameter in self._root.named_parameters()}
        stages = {
            id(parameter): frozenset(self.partition.stages[names[id(parameter)]]) & frozenset(own)
            for parameter in self.parameters
        }
        return OverlappedReduction(self.parameters, stages, self.tied, group)

    @property
    def summary(self) -> str:
        """A line for each stage, and one if the model had to be run to find them."""
        table = self.partition.table(self.blocks)
        ran = f"One microbatch was run on the CPU to find what each stage needs, since {self._reason.partition(' HINT:')[0]}"
        return f"{table}\n{ran}" if self._reason else table

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters of this process."""
        return self.stages.parameters

    def _make_equal(self) -> None:
        """Broadcast the first replica's weights to all replicas of a stage, and tied weights from the first stage."""
        broadcast_from_first([*self.parameters, *self._root.buffers()], self._groups.groups["DP"])
        self.tied.make_equal()

    def reduce_gradients(self) -> None:
        """After the backward passes, sum gradients of tied parameters over the stages, and average over the replicas."""
        self.tied.add_gradients()
        gradients.average(self.parameters, self._groups.groups["RDP"])

    def clip_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip gradients by their global norm; returns the norm before clipping."""
        own = [parameter for parameter in parameters if not self.stages.is_absent(parameter)]
        return gradients.clip_norm(own, self._counted(own), max_norm, self._groups.groups["MP"], norm_type)

    def grad_norms(self, parameters: Sequence[nn.Parameter], norm_type: float) -> Tensor:
        """The norm of each parameter's gradient; NaN for a parameter without one."""
        own = [parameter for parameter in parameters if not self.stages.is_absent(parameter)]
        return gradients.norms(parameters, self._counted(own), norm_type, self._groups.groups["MP"])

    def _counted(self, own: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """The parameters that this process, and no other one of the replica, contributes to a norm."""
        names = {id(parameter): name for name, parameter in self._root.named_parameters()}
        ranks = len(self._groups.pipeline_ranks)
        return [
            parameter
            for parameter in own
            if self.partition.stages[names[id(parameter)]][0] % ranks == self._groups.at.pipeline
            and (self.linears.is_shared(parameter) or self._groups.at.tensor == 0)
        ]

    @torch.no_grad()
    def follow(self, copy: nn.Module) -> None:
        """Partition a copy of the module, such as an average of its weights, in the same way. Collective over all processes.

        Its parameters then match the module's one by one. Its ``state_dict()`` is collective over the pipeline:
        complete on the first process, and empty on the others.

        Args:
            copy: A deep copy of the module, complete on all processes. It is never called while it is partitioned.

        """
        group = self._groups.groups["DP"]
        for tensor in [*copy.parameters(), *copy.buffers()]:
            if dist.get_world_size(group) > 1:
                broadcast(tensor.data, dist.get_global_rank(group, 0), group)  # averages may be kept on the CPU
        for original, parameter in zip(self._root.parameters(), copy.parameters(), strict=True):
            absent = self.stages.is_absent(original)
            parameter.data = parameter.data.new_empty(0) if absent else self.linears.part(original, parameter.data)
        hook = functools.partial(self._gather_copy)  # torch sets an attribute on it, which a method does not support
        self._copies.append((copy, copy.register_state_dict_post_hook(hook)))  # type: ignore[no-untyped-call]

    def _gather_copy(self, _: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        own = {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}
        state.update({f"{prefix}{name}": value for name, value in self.gather(own).items()})

    def owner(self, name: str) -> int:
        """Global rank of the process of this model replica that has a parameter or buffer."""
        stages = self.partition.stages.get(name)
        return self._groups.stage_rank(stages[0] if stages else self._buffer_stage(name))

    def _buffer_stage(self, name: str) -> int:
        """The stage of the blocks that are called with the buffer's module; the last stage if there are none."""
        region = self._called.get(name.rpartition(".")[0], len(self.blocks) - 1)
        return next(stage for stage, end in enumerate(self.partition.ends) if region < end)

    def own_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of ``root.state_dict()`` that this process holds; shards of matrices as DTensors."""
        originals = dict(_named_tensors(self._root))
        lacking = {name for name, tensor in originals.items() if self.stages.is_absent(tensor)}
        return {
            name: self.linears.placed(originals[name], value) if name in originals else value
            for name, value in state.items()
            if name not in lacking
        }

    @torch.no_grad()
    def gather(self, state: Mapping[str, Any], on_all: bool = False) -> dict[str, Any]:
        """Gather the full model's state from its stages. Collective over the pipeline.

        Args:
            state: ``root.state_dict()``.
            on_all: Whether all processes get it, not only the first.

        Returns:
            The state on the CPU; without ``on_all``, empty on all processes but the first.

        """
        first = self._groups.pipeline_ranks[0]
        rank, group = self._groups.rank, self._groups.cpu_groups["PP"]
        whole: dict[str, Any] = {}
        seen: dict[int, str] = {}
        names = {id(value): name for name, value in _named_tensors(self._root)}
        originals = dict(_named_tensors(self._root))
        for name, value in state.items():
            original = originals.get(name)
            if original is None:  # extra state, and entries that hooks have added
                whole[name] = value
                continue
            if id(original) in seen:  # another name of the same parameter
                whole[name] = whole.get(seen[id(original)])
                continue
            seen[id(original)] = name
            owner = self.owner(names[id(original)])
            if owner == rank:
                tensor = self.linears.full_tensor(original, value)
            else:
                tensor = torch.empty(self.stages.shape(original), dtype=original.dtype)
            if on_all:
                dist.broadcast(tensor, owner, group)
            elif owner != first:
                if rank == owner:
                    dist.send(tensor, first, group)
                elif rank == first:
                    dist.recv(tensor, owner, group)
            whole[name] = tensor
        return whole if on_all or rank == first else {}

    @torch.no_grad()
    def load(self, state: Mapping[str, object]) -> None:
        """Load this process's part of the full model's state."""
        for name, tensor in _named_tensors(self._root):
            value = state.get(name)
            if isinstance(value, Tensor) and not self.stages.is_absent(tensor):
                tensor.copy_(self.linears.part(tensor, value))

    def keep_own_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Drop optimizer state of other processes' parameters, and move the rest to the parameters' devices."""
        for parameter, state in list(optimizer.state.items()):
            if self.stages.is_absent(parameter):
                del optimizer.state[parameter]
                continue
            for key, value in state.items():
                if isinstance(value, Tensor) and value.dim():
                    state[key] = self.linears.part(parameter, value.to(parameter.device))

    def own_optimizer(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The part of an optimizer's state that this process holds; shards of matrices as DTensors."""
        return map_state(optimizer.state_dict(), parameters_in(optimizer.param_groups), self.linears.placed)

    def gather_optimizer(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Gather the full optimizer state on the first process; others return their own. Collective over the pipeline.

        Args:
            optimizer: Optimizer without state for parameters of other stages.

        """
        state = map_state(optimizer.state_dict(), parameters_in(optimizer.param_groups), self.linears.full_tensor)
        group = self._groups.cpu_groups["PP"]
        ranks = self._groups.pipeline_ranks
        parts: list[Any] | None = [None] * len(ranks) if self._groups.rank == ranks[0] else None
        dist.gather_object(state["state"], parts, ranks[0], group)
        if parts is None:
            return dict(state)
        merged: dict[Any, Any] = {}
        for part in reversed(parts):  # for tied parameters, the first stage's entry takes precedence
            merged.update(part)
        return {**state, "state": dict(sorted(merged.items()))}

    def restore(self) -> None:
        """Restore the full module on all processes, on the CPU. Collective over the pipeline."""
        whole = self.gather(self._root.state_dict(keep_vars=True), on_all=True)
        for copy, hook in self._copies:
            hook.remove()
            _fill(copy, self.gather(copy.state_dict(keep_vars=True), on_all=True))
        self.linears.remove()
        if self.reduction is not None:
            self.reduction.remove()
        self.stages.remove()
        self._saving.restore()
        self._root.cpu()
        _fill(self._root, whole)


@torch.no_grad()
def _fill(module: nn.Module, whole: Mapping[str, Any]) -> None:
    for name, tensor in _named_tensors(module):
        if name in whole:
            tensor.data = whole[name].to(tensor.device)


def _named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
