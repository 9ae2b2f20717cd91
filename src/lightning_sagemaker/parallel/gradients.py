# SPDX-License-Identifier: Apache-2.0
"""Averages gradients over replicas, and clips them by their global norm over stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_sagemaker._compat.guard import shadow
from lightning_sagemaker.collectives.devices import device_for

_BUCKET = 25 * 2**20
"""Bytes of a bucket, as in ``DistributedDataParallel``."""


@torch.no_grad()
def average(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Average the gradients over the replicas of a stage. Collective over ``group``.

    A parameter that has a gradient on no replica keeps none; if only some replicas have one, the others count as zero.

    Args:
        parameters: Parameters, in the same order on all replicas.
        group: Process group of the ranks that hold these parameters.

    """
    if dist.get_world_size(group) == 1 or not parameters:
        return
    held = [parameter.grad is not None for parameter in parameters]
    present = any_replica_has(held, parameters[0].device, group)
    average_present([parameter for parameter, has in zip(parameters, present, strict=True) if has], group)


def any_replica_has(held: Sequence[bool], device: torch.device, group: dist.ProcessGroup) -> list[bool]:
    """Whether any replica has a gradient, for each parameter. Collective over ``group``.

    Args:
        held: Whether this process has a gradient, for each parameter.
        device: Device of the group's tensors.
        group: Process group of the replicas.

    """
    flags = torch.tensor(held, dtype=torch.int32, device=device)
    dist.all_reduce(flags, dist.ReduceOp.MAX, group)
    return [bool(flag) for flag in flags.tolist()]


@torch.no_grad()
def average_present(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Average gradients; missing ones count as zero. Collective over ``group``.

    Args:
        parameters: Parameters with a gradient on any replica, in the same order on all replicas.
        group: Process group of the replicas.

    """
    size = dist.get_world_size(group)
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        flat /= size  # before the sum, as DistributedDataParallel does
        dist.all_reduce(flat, group=group)
        parts = torch.split(flat, [gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def _buckets(gradients: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    bucket: list[Tensor] = []
    for gradient in gradients:
        full = sum(one.nbytes for one in bucket) + gradient.nbytes > _BUCKET
        if bucket and (full or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket


@torch.no_grad()
def clip_norm(
    parameters: Iterable[nn.Parameter],
    counted: Iterable[nn.Parameter],
    max_norm: float,
    group: dist.ProcessGroup,
    norm_type: float = 2.0,
) -> Tensor:
    """Scale gradients so that the norm over all stages is at most ``max_norm``. Collective over ``group``.

    Args:
        parameters: Parameters of this process.
        counted: Parameters that this process alone contributes to the norm.
        max_norm: The maximum norm.
        group: Process group of a model replica.
        norm_type: Exponent of the norm; infinity for the largest absolute gradient.

    Returns:
        The norm before clipping.

    """
    own = [parameter.grad for parameter in parameters if parameter.grad is not None]
    grads = [parameter.grad.float() for parameter in counted if parameter.grad is not None]
    norms = [torch.linalg.vector_norm(grad, norm_type) for grad in grads]
    device = own[0].device if own else device_for(group)
    norm = torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.zeros((), device=device)
    norm = _over_stages(norm, norm_type, group)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    for gradient in own:
        gradient.mul_(factor.to(gradient.dtype))
    return norm


@torch.no_grad()
def norms(
    parameters: Sequence[nn.Parameter], counted: Iterable[nn.Parameter], norm_type: float, group: dist.ProcessGroup
) -> Tensor:
    """The norm of each parameter's gradient, shape ``(len(parameters),)``; NaN if none. Collective over ``group``.

    Args:
        parameters: Parameters, the same on all processes of the group.
        counted: Parameters that this process alone contributes.
        norm_type: Exponent of the norm; infinity for the largest absolute element.
        group: Process group of a model replica.

    """
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    found = torch.zeros(2, len(parameters), device=device_for(group))
    for parameter in counted:
        if parameter.grad is not None:
            found[0, places[id(parameter)]] = torch.linalg.vector_norm(parameter.grad.float(), norm_type)
            found[1, places[id(parameter)]] = 1
    norm = _over_stages(found[0], norm_type, group)
    dist.all_reduce(found[1], group=group)
    return norm.masked_fill(found[1] == 0, float("nan"))


def _over_stages(norm: Tensor, norm_type: float, group: dist.ProcessGroup) -> Tensor:
    if norm_type == float("inf"):
        dist.all_reduce(norm, dist.ReduceOp.MAX, group)
        return norm
    power = norm**norm_type
    dist.all_reduce(power, group=group)
    return power ** (1 / norm_type)


def swap_gradients(
    parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None] | None = None
) -> list[Tensor | None]:
    """Set the parameters' gradients; returns the previous ones.

    Args:
        parameters: Parameters of any shapes.
        gradients: A gradient or None for each parameter. Default: None for all.

    """
    before = [parameter.grad for parameter in parameters]
    for parameter, gradient in zip(parameters, [None] * len(before) if gradients is None else gradients, strict=True):
        parameter.grad = gradient
    return before


def accumulate(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """Add to the parameters' gradients.

    Args:
        parameters: Parameters of any shapes.
        gradients: A gradient for each parameter; None adds nothing.

    """
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


@torch.no_grad()
def agree_on_overflow(
    scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, device: torch.device, group: dist.ProcessGroup
) -> None:
    """Make all processes skip the step if one found an infinite gradient in ``scaler.unscale_(optimizer)``. Collective.

    Args:
        scaler: Gradient scaler of this process; those of the others must have the same scale.
        optimizer: Optimizer that was passed to the scaler.
        device: Device of this process.
        group: Process group of a model replica.

    """
    state = scaler._per_optimizer_states[id(optimizer)]
    found = [value.to(device) for value in state["found_inf_per_device"].values()]
    flag = torch.stack(found).amax(0) if found else torch.zeros(1, device=device)
    dist.all_reduce(flag, dist.ReduceOp.MAX, group)
    state["found_inf_per_device"] = {device: flag}


def sync_overflow_skips(scaler: torch.amp.GradScaler, device: torch.device, group: dist.ProcessGroup) -> None:
    """Make ``scaler.unscale_`` synchronize overflows from now on.

    Args:
        scaler: Gradient scaler of this process.
        device: Device of this process.
        group: Process group of a model replica.

    """
    if "unscale_" in vars(scaler):  # already done, by an earlier run of the same Trainer
        return
    scaler.scale(torch.zeros((), device=device))  # initializes it: only the last stage scales a loss
    unscale = scaler.unscale_

    def unscale_together(optimizer: torch.optim.Optimizer) -> None:
        unscale(optimizer)
        agree_on_overflow(scaler, optimizer, device, group)

    shadow(scaler, "unscale_", unscale_together)


def sums(first: list[Tensor | None], second: list[Tensor | None] | None) -> list[Tensor | None]:
    """Elementwise sum; None counts as zero."""
    if second is None:
        return first
    return [
        right if left is None else left if right is None else left + right
        for left, right in zip(first, second, strict=True)
    ]
