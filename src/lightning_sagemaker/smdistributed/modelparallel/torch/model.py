# SPDX-License-Identifier: Apache-2.0
"""``smp.DistributedModel``: a module that is partitioned into stages at its first step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lightning_sagemaker._compat.dtensor import local_of
from lightning_sagemaker.parallel import delayed, gradients
from lightning_sagemaker.parallel.degrees import PipelineError
from lightning_sagemaker.parallel.engine import share_results
from lightning_sagemaker.parallel.groups import broadcast_from_first
from lightning_sagemaker.parallel.model import PipelinedModel
from lightning_sagemaker.parallel.overlap import OverlappedReduction
from lightning_sagemaker.parallel.script_clipping import ScriptClipping
from lightning_sagemaker.smdistributed.modelparallel.torch.hooks import Hooks
from lightning_sagemaker.smdistributed.modelparallel.torch.own_parts import OwnParts, load_present
from lightning_sagemaker.smdistributed.modelparallel.torch.partition import assigned_ends, named_as_in_aws, shared_plan
from lightning_sagemaker.smdistributed.modelparallel.torch.passes import Passes, Replicas
from lightning_sagemaker.smdistributed.modelparallel.torch.sharded import ShardedParameters
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state
from lightning_sagemaker.smdistributed.modelparallel.torch.step import moved

if TYPE_CHECKING:
    from lightning_sagemaker._types import StateDict
    from lightning_sagemaker.smdistributed.modelparallel.torch.uneven import UnevenBatches


IS_PARTIAL = "_smp_is_partial"
"""Key of a state that holds one stage only."""


class DistributedModel(OwnParts, Passes, Hooks, nn.Module):
    """Wraps the model of a script; a process has one.

    Args:
        module: The user's model. Its parameters stay the same objects.
        trace_device: Without effect: tracing runs on shapes.
        trace_execution_times: Without effect.
        overlapping_allreduce: In a pipeline, average gradients over the replicas during the backward passes, if they
            are averaged in each step.
        backward_passes_per_step: Number of steps whose gradients are accumulated before they are reduced.
        average_grads_across_microbatches: Divide gradients by the number of microbatches.
        bucket_cap_mb: Option of ``DistributedDataParallel``, as the following ones for passes outside of steps only.
        trace_memory_usage: Without effect.
        broadcast_buffers: Likewise; in steps, buffers are made equal once, at the start.
        gradient_as_bucket_view: Likewise.
        find_unused_parameters: Likewise; in steps, parameters without gradients are allowed.

    Raises:
        RuntimeError: If ``module`` is one already, or before :func:`init`.
        TypeError: If ``module`` is no module.

    """

    def __init__(
        self,
        module: nn.Module,
        trace_device: str = "gpu",
        trace_execution_times: bool = False,
        overlapping_allreduce: bool = True,
        backward_passes_per_step: int = 1,
        average_grads_across_microbatches: bool = True,
        bucket_cap_mb: float = 25,
        trace_memory_usage: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
        find_unused_parameters: bool = False,
    ) -> None:
        super().__init__()
        state.groups  # noqa: B018 - raises before init
        if not isinstance(module, nn.Module):
            raise TypeError(f"smp.DistributedModel({module!r}) was called. HINT: pass a torch.nn.Module.")
        if isinstance(module, DistributedModel):
            raise RuntimeError("The model is a DistributedModel already. HINT: wrap it only once.")
        self.module = named_as_in_aws(module)
        self._passes, self._mean = backward_passes_per_step, average_grads_across_microbatches
        self._overlaps = overlapping_allreduce and backward_passes_per_step == 1
        self._reduction: OverlappedReduction | None = None
        self._pipeline: PipelinedModel | None = None
        self._losses: list[Tensor] = []
        self._is_in_step = False
        self._backward_steps = 0
        self._pending: list[Tensor | None] | None = None
        self._after_partition, self._after_step = {}, {}
        self.sharded: ShardedParameters | None = None
        self.uneven: UnevenBatches | None = None
        replicas = state.groups.groups["RDP"]
        wrap = functools.partial(
            DistributedDataParallel,
            module,
            process_group=replicas,
            bucket_cap_mb=bucket_cap_mb,
            gradient_as_bucket_view=gradient_as_bucket_view,
            find_unused_parameters=find_unused_parameters,
        )
        if not broadcast_buffers:  # naming it is deprecated in torch 2.13
            wrap = functools.partial(wrap, broadcast_buffers=False)
        self._replicas = Replicas(self.module, wrap, dist.get_world_size(replicas), backward_passes_per_step)
        state.take(self)
        if self._is_alone:
            delayed.materialize(self.module)
            self.module.to(state.device)
            broadcast_from_first([*self.module.parameters(), *self.module.buffers()], state.groups.groups["RDP"])
            if state.groups.degrees.shard > 1:
                self.sharded = ShardedParameters(self.module, state.groups.degrees, state.device)

    @property
    def _is_alone(self) -> bool:
        """Whether each process has the full model."""
        return len(state.groups.ranks["MP"]) == 1

    @property
    def partitioned(self) -> bool:
        """Whether the model is partitioned: at once if each process has the full model, otherwise at the first step."""
        return self._pipeline is not None or self._is_alone

    def get_module(self) -> nn.Module:
        """The user's model."""
        return self.module

    @property
    def _scale(self) -> float:
        assert state.cfg is not None
        return 1 / state.cfg.degrees.microbatches if self._mean else 1.0

    def run_step(self, step: Callable[[Any], object], microbatches: list[object]) -> list[object]:
        """Run a step on all stages; returns its results on all ranks. Collective over the pipeline.

        Args:
            step: The user's function for one microbatch.
            microbatches: Argument of each call.

        """
        self._is_in_step = True
        try:
            kept = gradients.swap_gradients(self.own)
            if self._is_alone:
                self.call_after_partition(state.optimizer)
                results = [step(microbatch) for microbatch in microbatches]
            else:
                results = self._run_pipeline(step, microbatches)
        finally:
            self._is_in_step = False
        self._finish_gradients(kept)
        for hook in list(self._after_step.values()):
            hook(self, state.optimizer)
        self._after_step.clear()
        return results

    def _run_pipeline(self, step: Callable[[Any], object], microbatches: list[object]) -> list[object]:
        def run(microbatch: object) -> object:
            self._losses.clear()
            result = step(microbatch)
            if not self._losses and any(parameter.grad is not None for parameter in self.own):
                raise PipelineError(
                    "loss.backward() was called in a step, where it reaches the last stage only. HINT: call"
                    " model.backward(loss)."
                )
            return result

        pipeline = self._cut(run, microbatches[0])
        trains = torch.is_grad_enabled()
        self._reduction = pipeline.reduction if trains and self._overlaps and self.uneven is None else None
        if self._reduction is not None:
            self._reduction.begin()
        kind = f"{getattr(step, '__self__', step)!r}, {trains}"
        results = pipeline.engine.run(run, microbatches, self._loss if trains else None, self._reduction, kind)
        shared = share_results(results, state.groups)
        return results if pipeline.engine.has_last_stage else moved(shared, state.device)

    def _loss(self, _: object) -> Tensor:
        """Sum of the losses that the step has passed to :meth:`backward`; 0 without any."""
        if not self._losses:
            return torch.zeros(())
        return torch.stack(self._losses).sum() * self._scale

    def _cut(self, step: Callable[[Any], object], microbatch: object) -> PipelinedModel:
        if self._pipeline is None:
            if self.uneven is not None:
                self.uneven.begin_partition(self._is_in_step)
            state.is_tracing = True
            try:
                ends = functools.partial(assigned_ends, self.module)
                self._pipeline = PipelinedModel(
                    self.module, state.groups, state.device, step, microbatch, ends=ends, plan=shared_plan
                )
            finally:
                state.is_tracing = False
            self._clipping = ScriptClipping(self, self.module)
            if state.groups.rank == 0:
                print(self._pipeline.summary)
            if state.optimizer is not None:
                self._pipeline.keep_own_state(state.optimizer.optimizer)
            self.call_after_partition(state.optimizer)
        return self._pipeline

    def _finish_gradients(self, kept: list[Tensor | None]) -> None:
        """Reduce the gradients accumulated since the last reduction, and add them to those from before the step."""
        own = self.own
        found = [parameter.grad for parameter in own]
        if self._is_alone and self._scale != 1:  # not of the losses: scripts may call loss.backward() here
            found = [None if gradient is None else gradient.mul_(self._scale) for gradient in found]
        if len(kept) != len(own):  # the model was partitioned in this step; before it, there were none
            kept = [None] * len(own)
        if any(gradient is not None for gradient in found):
            self._backward_steps += 1
        found = gradients.sums(found, self._pending)
        if self._backward_steps % self._passes:
            self._pending, found = found, [None] * len(own)
        else:
            self._pending = None
        gradients.swap_gradients(own, found)
        if self._pending is None and torch.is_grad_enabled():
            factor = 1.0 if self.uneven is None else self.uneven.begin_reduction()
            if self._reduction is not None:
                self._reduction.finish()
            elif self._pipeline is not None:
                self._pipeline.reduce_gradients()
            elif self.sharded is None:  # else each backward pass has reduced them
                gradients.average(own, state.groups.groups["RDP"])
            if factor != 1:
                for one in own:
                    one.grad = None if one.grad is None else one.grad.mul_(factor)
        gradients.swap_gradients(own, gradients.sums([one.grad for one in own], kept))

    def state_dict(  # type: ignore[override]  # with an option more
        self, *args: Any, gather_to_rank0: bool = False, **kwargs: Any
    ) -> StateDict:
        """The full model's state, by the names of the user's model. Collective over the replica.

        Args:
            args: Arguments of ``nn.Module.state_dict``.
            gather_to_rank0: Gather it on the replica's first process only; the others get ``{}``.
            kwargs: Arguments of ``nn.Module.state_dict``.

        """
        found: StateDict = self.module.state_dict(*args, **kwargs)
        if self.sharded is not None:
            return self.sharded.full_state(found, gather_to_rank0)
        if self._pipeline is None:
            return delayed.full_state(self.module, found)
        return self._pipeline.gather(found, on_all=not gather_to_rank0)

    def local_state_dict(self, *args: Any, **kwargs: Any) -> StateDict:
        """The state of this process's stages, marked as partial."""
        names = {name for name, _ in self.module.named_parameters(remove_duplicate=False)}
        own = {id(parameter) for parameter in self.own}
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        found = delayed.full_state(self.module, self.module.state_dict(*args, **kwargs))
        kept = {name: value for name, value in found.items() if name not in names or id(parameters[name]) in own}
        if self.sharded is not None:
            return {**{name: local_of(value) for name, value in kept.items()}, IS_PARTIAL: True}
        return {**kept, IS_PARTIAL: self._pipeline is not None}

    def load_state_dict(
        self, state_dict: Mapping[str, object], strict: bool = True, same_partition_load: bool = False
    ) -> Any:
        """Load a full or a partial state, before or after the model is partitioned.

        Args:
            state_dict: Full state, or (marked by ``_smp_is_partial``) this process's part; then collective over the
                model replica, each of whose processes passes its part.
            strict: Whether names must be those of the model.
            same_partition_load: Whether the part is of the same partition, so that nothing is exchanged.

        """
        content = dict(state_dict)
        is_partial = bool(content.pop(IS_PARTIAL, False))
        if self.sharded is not None:
            return self.sharded.load(content, is_partial, strict)
        if is_partial and len(state.groups.ranks["TP"]) > 1:  # parts of matrices fit the same layout only
            if self._pipeline is None:
                return self.register_post_partition_hook(lambda *_: self._load_own(content, strict))
            return self._load_own(content, strict)
        if is_partial and not (same_partition_load and self._pipeline is not None):
            parts: list[StateDict] = [{}] * len(state.groups.pipeline_ranks)
            dist.all_gather_object(parts, content, group=state.groups.cpu_groups["PP"])
            content = {name: value for part in reversed(parts) for name, value in part.items()}
        if self._pipeline is None:
            with delayed.loading(self.module, content):
                return self.module.load_state_dict(content, strict=strict)
        return self._load_own(content, strict)

    @torch.no_grad()
    def _load_own(self, content: Mapping[str, object], strict: bool) -> object:
        own = {id(parameter) for parameter in self.own}
        targets: dict[str, Tensor] = dict(self.module.named_parameters(remove_duplicate=False))
        absent = {name for name, parameter in targets.items() if id(parameter) not in own}
        parts = {name: self.part_of(targets.get(name), value) for name, value in content.items() if name not in absent}
        return load_present(self.module, parts, absent, strict)

    def to(self, *args: Any, **kwargs: Any) -> DistributedModel:
        """Without effect before the model is partitioned: its stages are moved to their devices then."""
        return self if not self.partitioned else super().to(*args, **kwargs)

    def cuda(self, device: int | torch.device | None = None) -> DistributedModel:
        """As :meth:`to`."""
        return self if not self.partitioned else super().cuda(device)

    def cpu(self) -> DistributedModel:
        """Gather all parameters and move them to the CPU; a further step partitions the model again. Collective."""
        if self._pipeline is not None:
            self._pipeline.restore()
            self._pipeline = self._reduction = None
            self.stop_clipping()
        return super().cpu()
