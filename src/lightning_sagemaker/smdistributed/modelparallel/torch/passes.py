# SPDX-License-Identifier: Apache-2.0
"""Forward and backward passes of a distributed model, in steps and outside of them.

AWS allows passes outside of ``@smp.step`` where each process has the full model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lightning_sagemaker.parallel.degrees import PipelineError


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
        if self._wrapped is None:
            self._wrapped = self._wrap()
        self._calls += 1
        with self._wrapped.no_sync() if self._calls % self._passes else nullcontext():
            return self._wrapped(*args, **kwargs)


class Passes:
    """Mixin of ``DistributedModel``: its forward and backward passes."""

    module: nn.Module
    sharded: object
    _replicas: Replicas
    _losses: list[Tensor]
    _is_in_step: bool

    @property
    def _is_alone(self) -> bool:
        """Whether each process has the full model."""
        raise NotImplementedError

    def forward(self, *args: object, **kwargs: object) -> object:
        """Run the user's model: in a step, or also outside of steps if each process has the full model.

        Raises:
            PipelineError: Outside of steps, if the model is partitioned.

        """
        if self._is_in_step or self.sharded is not None:
            return self.module(*args, **kwargs)
        self._check_place("the model was called")
        return self._replicas(*args, **kwargs)

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
        if self._is_alone:
            torch.autograd.backward(tensors, grad_tensors)
            return
        self._check_place("model.backward was called")
        self._losses += _as_losses(tensors, grad_tensors)

    def _check_place(self, what: str) -> None:
        if not self._is_in_step and not self._is_alone:
            raise PipelineError(
                f"{what} outside of a step, but it is partitioned (partitions, or tensor_parallel_degree). HINT: call"
                " the model and model.backward in a function with @smp.step."
            )


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
