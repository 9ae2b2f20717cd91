# SPDX-License-Identifier: Apache-2.0
"""Forward and backward passes of a distributed model, in steps and outside of them.

AWS allows passes outside of ``@smp.step`` where there are no partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lightning_sagemaker.parallel.degrees import PipelineError
from lightning_sagemaker.smdistributed.modelparallel.torch.joined import JoinedBatches, is_joined
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state
from lightning_sagemaker.smdistributed.modelparallel.torch.step import moved

if TYPE_CHECKING:
    from lightning_sagemaker._types import StateDict
    from lightning_sagemaker.parallel.model import PipelinedModel
    from lightning_sagemaker.smdistributed.modelparallel.torch.uneven import UnevenBatches


class _Call(TypedDict):
    args: tuple[object, ...]
    kwargs: StateDict


class Replicas:
    """Calls the model; backward passes from its outputs average the gradients, as AWS's ``DistributedModel`` does by DDP.

    Args:
        module: The user's model.
        wrap: Wraps it; called before the first pass that needs gradients.
        count: Number of replicas.
        passes: Number of backward passes whose gradients are accumulated before they are averaged.

    """

    def __init__(self, module: nn.Module, wrap: Callable[[], DistributedDataParallel], count: int, passes: int) -> None:
        self._module, self._wrap, self._count, self._passes = module, wrap, count, passes
        self._wrapped: DistributedDataParallel | None = None
        self._calls = 0

    def __call__(self, *args: object, **kwargs: object) -> object:
        """The model's output."""
        trains = torch.is_grad_enabled() and any(one.requires_grad for one in self._module.parameters())
        if not trains or self._count == 1:
            return self._module(*args, **kwargs)
        self._calls += 1
        with self.wrapped.no_sync() if self._calls % self._passes else nullcontext():
            return self.wrapped(*args, **kwargs)

    @property
    def wrapped(self) -> DistributedDataParallel:
        """The wrapped module; created by all replicas at the same time."""
        if self._wrapped is None:
            self._wrapped = self._wrap()
        return self._wrapped


class Passes:
    """Mixin of ``DistributedModel``: its forward and backward passes."""

    module: nn.Module
    sharded: object
    _replicas: Replicas
    _losses: list[Tensor]
    _is_in_step: bool
    uneven: UnevenBatches | None

    @property
    def _is_alone(self) -> bool:
        """Whether each process has the full model."""
        raise NotImplementedError

    def _cut(self, step: Callable[..., object], microbatch: object) -> PipelinedModel:
        """The partitioned or sharded model; created in the first pass."""
        raise NotImplementedError

    def forward(self, *args: object, **kwargs: object) -> object:
        """Run the user's model: in a step, or also outside of steps if there are no partitions.

        Raises:
            PipelineError: Outside of steps, if the model is partitioned.

        """
        if self._is_in_step or self.sharded is not None:
            return self.module(*args, **kwargs)
        self._check_place("the model was called")
        if not self._is_alone:
            return self._pass_shared(args, kwargs)
        return self._pass(*args, **kwargs)

    def _pass(self, *args: object, **kwargs: object) -> object:
        if self.uneven is not None and torch.is_grad_enabled():
            self.uneven.begin_pass()
        return self._replicas(*args, **kwargs)

    def _pass_shared(self, args: tuple[object, ...], kwargs: StateDict) -> object:
        """Call the model with the samples of all ranks of a tensor parallel group; returns the rows of this rank's."""
        args, kwargs = moved((args, kwargs), state.device)
        self._cut(lambda call: self.module(*call[0], **call[1]), (args, kwargs)).stages.call_outside()
        if not is_joined():
            return self._pass(*args, **kwargs)
        joined = JoinedBatches([{"args": args, "kwargs": kwargs}], (), {})
        whole = cast("_Call", joined.microbatches[0])
        return joined.own_rows([self._pass(*whole["args"], **whole["kwargs"])])[0]

    def join_passes(self, divides_by_all: bool, throws: bool) -> AbstractContextManager[object]:
        """The context of ``model.join()`` for passes outside of steps."""
        joined: AbstractContextManager[object] = self._replicas.wrapped.join(
            divide_by_initial_world_size=divides_by_all, throw_on_early_termination=throws
        )
        return joined

    def backward(
        self,
        tensors: Tensor | Sequence[Tensor],
        grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    ) -> None:
        """Run the backward pass of a microbatch's loss; in a step, instead of ``loss.backward()``.

        Args:
            tensors: The loss, or several, or any outputs of the model.
            grad_tensors: The gradient with respect to each tensor that is no number, as in ``torch.autograd.backward``.

        Raises:
            PipelineError: Outside of steps, if the model is partitioned.

        """
        if self._is_alone or not (self._is_in_step or self._is_partitioned):
            torch.autograd.backward(tensors, grad_tensors)
            return
        self._check_place("model.backward was called")
        self._losses += _as_losses(tensors, grad_tensors)

    def _check_place(self, what: str) -> None:
        if not self._is_in_step and self._is_partitioned:
            raise PipelineError(
                f"{what} outside of a step, but it is partitioned. HINT: call the model and model.backward in a function"
                " with @smp.step."
            )

    @property
    def _is_partitioned(self) -> bool:
        """Whether the model has stages on several processes, sharded or not."""
        return len(state.groups.pipeline_ranks) > 1


def _as_losses(
    tensors: Tensor | Sequence[Tensor], grad_tensors: Tensor | Sequence[Tensor | None] | None
) -> list[Tensor]:
    """Numbers whose gradients are those of ``torch.autograd.backward(tensors, grad_tensors)``."""
    losses = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    weights = [grad_tensors] * len(losses) if grad_tensors is None or isinstance(grad_tensors, Tensor) else grad_tensors
    for loss, weight in zip(losses, weights, strict=True):
        if weight is None and loss.numel() != 1:
            raise PipelineError(
                f"model.backward was called with a tensor of shape {list(loss.shape)}. HINT: pass a number, such as the mean"
                " of the loss, or grad_tensors."
            )
    return [(loss if weight is None else loss * weight).sum() for loss, weight in zip(losses, weights, strict=True)]
