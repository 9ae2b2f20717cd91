# SPDX-License-Identifier: Apache-2.0
"""Runs microbatches through the stages of a pipeline, forward and backward."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lightning_sagemaker._compat import pytree
from lightning_sagemaker.parallel.containers import copied
from lightning_sagemaker.parallel.degrees import ParallelConfigError, PipelineError
from lightning_sagemaker.parallel.exchange import Exchange, Tag
from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.partition import Partition
from lightning_sagemaker.parallel.schedule import Action, Kind, Plan, make_plan
from lightning_sagemaker.parallel.stage import Stages

_ACTIVATIONS, _GRADIENTS = 0, 1


class _Held(NamedTuple):
    """What a stage saves of a microbatch between its forward and its backward pass."""

    received: list[Tensor]
    outputs: list[Tensor]


@dataclass(frozen=True)
class _Run:
    """A step that runs: the user's code, its microbatches, and what it returned for them; without a loss only forward."""

    step: Callable[[Any], Any]
    microbatches: Sequence[Any]
    loss_of: Callable[[Any], Tensor] | None
    kind: str
    results: list[Any]


class BackwardListener(Protocol):
    """Notified when gradients become final."""

    def begin_last(self, stage: int) -> None:
        """The step's last backward pass through ``stage``, of this process, begins."""

    def end_last(self, stage: int) -> None:
        """The step's last backward pass through ``stage`` has ended."""

    def abandon(self) -> None:
        """A stage has failed; the step is aborted."""


class PipelineEngine:
    """The stages of this process, and the order in which it runs them.

    A failing stage sends the error to the others instead of their expected inputs: all processes of the pipeline raise
    in the same step, and none hangs.

    Args:
        stages: Stages of this process.
        partition: Partition of the model.
        groups: Process groups of the job.
        device: Device of the stages.

    """

    def __init__(self, stages: Stages, partition: Partition, groups: ParallelGroups, device: torch.device) -> None:
        self._stages, self._groups, self._device = stages, groups, device
        self._num_stages = len(partition.ends)
        self._exchange = Exchange(groups.channels, groups.rank, device)
        self._plans: dict[str, Plan] = {}
        self._held: dict[tuple[int, int], _Held] = {}
        self._split: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._received: set[Tag] = set()
        self._outputs: list[Any] = []

    @property
    def has_last_stage(self) -> bool:
        """Whether this process has the last stage, whose results are real."""
        return self._groups.stage_rank(self._num_stages - 1) == self._groups.rank

    def plan(self, schedule: str, microbatches: int) -> Plan:
        """The order of a step's forward and backward passes."""
        key = f"{schedule}/{microbatches}"
        if key not in self._plans:
            ranks = len(self._groups.pipeline_ranks)
            per_rank = self._num_stages // ranks
            active = self._groups.degrees.active_microbatches
            self._plans[key] = make_plan(schedule, ranks, microbatches, per_rank, active)
        return self._plans[key]

    def run(
        self,
        step: Callable[[Any], Any],
        microbatches: Sequence[Any],
        loss_of: Callable[[Any], Tensor] | None = None,
        listener: BackwardListener | None = None,
        kind: str = "",
    ) -> list[Any]:
        """Run a step. Collective over the pipeline.

        Args:
            step: The user's code for one microbatch.
            microbatches: The arguments of ``step``.
            loss_of: Maps ``step``'s return value to the loss, called as soon as it has returned; None for no backward
                passes.
            listener: Called around the last backward pass through each stage of this process.
            kind: Name of the user's code. Its first run is checked for uses of other stages' values.

        Returns:
            What ``step`` returned for each microbatch, if this process has the last stage; else None for each. Without
            ``loss_of`` the caller has to share it (:func:`share_results`), which raises if a stage has failed.

        Raises:
            PipelineError: If another stage failed.
            Exception: Whatever the user's code raised here.

        """
        if loss_of is not None and self._groups.degrees.schedule == "_only_forward":
            raise ParallelConfigError(
                "pipeline='_only_forward' was set, but this step trains. HINT: set interleaved, simple or zero_bubble."
            )
        self._outputs = [None] * len(microbatches)
        schedule = "_only_forward" if loss_of is None else self._groups.degrees.schedule
        run = _Run(step, microbatches, loss_of, kind, results=[None] * len(microbatches))
        failure: BaseException | None = None
        order = self.plan(schedule, len(microbatches)).orders[self._groups.at.pipeline]
        last = _last_backward(order)
        for action in order:
            if failure is None:
                try:
                    if listener is not None and action in last:
                        listener.begin_last(action.stage)
                    self._compute(action, run)
                    if listener is not None and action in last:
                        listener.end_last(action.stage)
                    continue
                except Exception as error:
                    failure = error
            self._refuse(action, failure)
        self._exchange.finish()
        self._received.clear()
        self._held.clear()
        self._split.clear()
        if failure is not None:
            if listener is not None:
                listener.abandon()
            if loss_of is None:
                self._share_failure(failure)
            raise failure
        return run.results

    @torch.no_grad()
    def run_everywhere(self, step: Callable[[Any], Any], microbatches: Sequence[Any], kind: str = "") -> list[Any]:
        """Run a step without backward passes so that all of its effects are on all processes. Collective.

        The last stage computes; the model's output is sent to the other processes, where ``step`` is re-run with it.

        Args:
            step: The user's code for one microbatch.
            microbatches: The arguments of ``step``.
            kind: As for :meth:`run`.

        Returns:
            What ``step`` returned for each microbatch.

        """
        results = self.run(step, microbatches, kind=kind)
        outputs = share_results(self._outputs, self._groups)
        self._outputs = []
        if any(output is None for output in outputs):
            raise PipelineError(
                f"{kind or 'this step'} does not call the module with all parameters that the first step called. HINT: call"
                " it in all steps, as self(...) or self.model(...), or in none."
            )
        if self.has_last_stage:
            return results
        outputs = pytree.tree_map_only(Tensor, self._to_device, outputs)
        pairs = zip(microbatches, outputs, strict=True)
        return [self._stages.replay(functools.partial(step, copied(part)), output) for part, output in pairs]

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device)

    def _compute(self, action: Action, run: _Run) -> None:
        if action.kind is Kind.FORWARD:
            run.results[action.microbatch] = self._forward(action, run)
            return
        with self._stages.recomputing():
            (self._weight if action.kind is Kind.WEIGHT else self._backward)(action)

    def _forward(self, action: Action, run: _Run) -> Any:
        stage, number, loss_of = action.stage, action.microbatch, run.loss_of
        received = self._receive(stage - 1, Tag(_ACTIVATIONS, stage, number)) if stage else None
        result, outputs = self._stages.run(
            stage, lambda: run.step(copied(run.microbatches[number])), received, run.kind
        )
        output = self._stages.take_output()
        if loss_of is None:  # in training it would keep what the backward pass frees
            self._outputs[number] = output
        if outputs is not None:
            self._send(stage + 1, Tag(_ACTIVATIONS, stage + 1, number), outputs)
        elif loss_of is not None:
            outputs = [loss_of(result)]
        if loss_of is not None and outputs is not None:
            self._held[stage, number] = _Held(received or [], outputs)
        return result

    def _backward(self, action: Action) -> None:
        stage, number = action.stage, action.microbatch
        held = self._held.pop((stage, number))
        inputs = [tensor for tensor in held.received if tensor.requires_grad]
        outputs = [tensor for tensor in held.outputs if tensor.requires_grad]
        gradients: list[Tensor] | None = None
        if stage + 1 < self._num_stages:
            gradients = self._receive(stage + 1, Tag(_GRADIENTS, stage, number))
        if action.kind is Kind.INPUT and inputs:
            self._input(action, inputs, outputs, gradients)
        elif action.kind is Kind.INPUT:
            self._split[stage, number] = (outputs, gradients)
        elif outputs:
            torch.autograd.backward(outputs, gradients)
        if stage:
            found = [torch.zeros_like(one) if one.grad is None else one.grad for one in inputs]
            self._send(stage - 1, Tag(_GRADIENTS, stage - 1, number), found)

    def _input(
        self, action: Action, inputs: list[Tensor], outputs: list[Tensor], gradients: list[Tensor] | None
    ) -> None:
        """Compute only the gradients that the previous stage waits for; :meth:`_weight` computes those of the weights."""
        from torch.distributed.pipelining._backward import stage_backward_input

        # Copies, because the function detaches its arguments, which may be saved for the backward pass of the weights.
        ends = [output.clone() for output in outputs]
        found, groups = stage_backward_input(ends, gradients, inputs, iter(self._stages.parameters))
        for tensor, gradient in zip(inputs, found, strict=True):
            tensor.grad = gradient
        self._split[action.stage, action.microbatch] = (groups,)

    def _weight(self, action: Action) -> None:
        from torch.distributed.pipelining._backward import stage_backward_weight

        kept = self._split.pop((action.stage, action.microbatch))
        if len(kept) == 1:
            stage_backward_weight(iter(self._stages.parameters), kept[0])
        elif kept[0]:
            torch.autograd.backward(*kept)

    def _receive(self, stage: int, tag: Tag) -> list[Tensor]:
        self._received.add(tag)
        message = self._exchange.receive(self._groups.stage_rank(stage), tag)
        if message.failure is not None:
            raise PipelineError(message.failure)
        for tensor, needs_grad in zip(message.tensors, message.needs_grad, strict=True):
            tensor.requires_grad_(needs_grad and torch.is_grad_enabled())
        return message.tensors

    def _send(self, stage: int, tag: Tag, tensors: list[Tensor], failure: str | None = None) -> None:
        self._exchange.send(self._groups.stage_rank(stage), tag, tensors, failure)

    def _refuse(self, action: Action, failure: BaseException) -> None:
        """Notify the waiting stage that this computation failed."""
        text = self._text(action.stage, failure)
        stage, number, last = action.stage, action.microbatch, self._num_stages - 1
        if action.kind is Kind.FORWARD:
            self._discard(stage - 1, Tag(_ACTIVATIONS, stage, number), stage > 0)
            if stage < last:
                self._send(stage + 1, Tag(_ACTIVATIONS, stage + 1, number), [], text)
        elif action.kind is not Kind.WEIGHT:
            self._discard(stage + 1, Tag(_GRADIENTS, stage, number), stage < last)
            if stage:
                self._send(stage - 1, Tag(_GRADIENTS, stage - 1, number), [], text)

    def _text(self, stage: int, failure: BaseException) -> str:
        own = f"pipeline stage {stage} (rank {self._groups.rank}) failed: {type(failure).__name__}: {failure}"
        return str(failure) if isinstance(failure, PipelineError) else own

    def _share_failure(self, failure: BaseException) -> None:
        """Send the failure in place of the results: without backward passes, earlier stages get no other message."""
        results = self._groups.results
        if results.is_source:
            results.share_failure(self._text(self._num_stages - 1, failure))
        else:
            with contextlib.suppress(PipelineError):
                results.share(None)

    def _discard(self, stage: int, tag: Tag, expected: bool) -> None:
        """Remove a message from its channel, so that the next step does not receive it."""
        if expected and tag not in self._received:
            self._exchange.receive(self._groups.stage_rank(stage), tag)


def _last_backward(order: Sequence[Action]) -> set[Action]:
    """For each stage, the action that computes the last of its weight gradients."""
    return set({action.stage: action for action in order if action.kind in (Kind.BACKWARD, Kind.WEIGHT)}.values())


def share_results(results: list[Any], groups: ParallelGroups) -> list[Any]:
    """The last stage's results on all processes of the pipeline. Collective over it.

    Raises:
        PipelineError: On all of them, if the results cannot be pickled.

    """
    shared = groups.results.share(results)
    assert isinstance(shared, list)
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), shared)  # type: ignore[no-any-return]
