# SPDX-License-Identifier: Apache-2.0
"""DDP's gradient buckets, restored in a resumed run.

DDP's first step uses buckets in the order of registration, all others use buckets in the order in which gradients were
ready in the first. A sum over three or more processes depends, by rounding, on an element's position in its bucket. So
the first step of a resumed run differs from that of an uninterrupted run, unless its buckets are rebuilt before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.collectives.reduction.hook import own_reducer, reduced_parameters, uncounted

if TYPE_CHECKING:
    from torch import Tensor, nn


Layout = list[list[int]]
"""Indices of the parameters in each bucket, in the order in which gradients become ready."""

_REBUILT, _HOOK = "rebuilt_per_bucket_param_indices", "comm_hook"


def bucket_layout(ddp_module: nn.Module | None) -> Layout | None:
    """The buckets of the next step; None if they are those of a fresh run. Collective over all ranks, between two steps.

    After the first step DDP would rebuild its buckets in the next forward pass. Here that is done at once, with the
    same result, so that a checkpoint after one step is valid too.

    Args:
        ddp_module: The wrapper, or a module without one.

    Raises:
        NameGone: If this version of torch does not expose it.

    """
    if not isinstance(ddp_module, DistributedDataParallel) or _obstacle(ddp_module) is not None:
        return None
    _rebuild(ddp_module)
    return _read(ddp_module)


def rebuild_as(ddp_module: nn.Module | None, layout: Sequence[Sequence[int]] | None) -> bool:
    """Restore DDP's buckets from another run, before its first step. Collective over all ranks.

    The gradients of all parameters are marked ready, in the order of ``layout``; they are zeros, and are reduced. No
    user code runs: no forward pass, no hook of a parameter. Parameters, buffers, random states and gradients are
    unchanged afterwards.

    Args:
        ddp_module: The wrapper, or a module without one.
        layout: From :func:`bucket_layout`; with None nothing is done.

    Returns:
        Whether the buckets are now those of ``layout``. If not, rank zero has logged why.

    Raises:
        NameGone: If this version of torch builds its buckets differently.

    """
    if not layout or not isinstance(ddp_module, DistributedDataParallel):
        return False
    why = _obstacle(ddp_module) or _mismatch(ddp_module, layout)
    if why is None:
        _make_ready(ddp_module, [index for bucket in layout for index in bucket])
        _rebuild(ddp_module)
        if _read(ddp_module) != [list(bucket) for bucket in layout]:
            why = "bucket sizes differ from the checkpoint's"
    if why is not None:
        rank_zero_info(f"The first step may differ by rounding from that of an uninterrupted run: {why}.")
    return why is None


def _obstacle(ddp: DistributedDataParallel) -> str | None:
    """Why the buckets of this wrapper are not changed; the same on all ranks."""
    require(ddp, "reducer", "logger", "static_graph", "find_unused_parameters", "process_group", "_comm_hooks")
    require(ddp, "_has_rebuilt_buckets", "_build_params_for_reducer", "_get_ddp_logging_data")
    if ddp.find_unused_parameters:
        return "DDP does not rebuild buckets with find_unused_parameters"
    if ddp.static_graph:
        return "with static_graph DDP records its first step"
    if own_reducer(ddp) is None and (ddp._comm_hooks or _told(ddp).get(_HOOK)):
        return "a communication hook would be run"
    if getattr(ddp, "_use_python_reducer", False) or getattr(ddp, "_delay_all_reduce_all_params", False):
        return "DDP was configured not to reduce by buckets"
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in ddp.parameters()):
        return "the optimizer steps within the backward pass"
    if ddp.process_group.size() == 1:
        return "there is one process"
    return None


def _mismatch(ddp: DistributedDataParallel, layout: Sequence[Sequence[int]]) -> str | None:
    """Why ``layout`` cannot be that of this wrapper."""
    parameters, sparse = reduced_parameters(ddp)
    if sorted(index for bucket in layout for index in bucket) != list(range(len(parameters))):
        return f"the checkpoint's model has other parameters than these {len(parameters)}"
    if any(sparse):
        return "gradients are sparse"
    if _read(ddp) is not None:
        return "a step has already run"
    return None


def _told(ddp: DistributedDataParallel) -> dict[str, object]:
    """DDP's logging data of its last forward pass."""
    told: dict[str, object] = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return told


def _read(ddp: DistributedDataParallel) -> Layout | None:
    require(ddp.logger, "set_runtime_stats_and_log")
    assert ddp.logger is not None
    ddp.logger.set_runtime_stats_and_log()  # DDP's logging data is that of its last forward pass
    told = _told(ddp).get(_REBUILT)
    return None if not told else [[int(index) for index in bucket.split()] for bucket in str(told).split(",")]


def _rebuild(ddp: DistributedDataParallel) -> None:
    """DDP's bucket rebuild at the start of a forward pass; does nothing if no gradients were ready yet, or if it is done."""
    require(ddp.reducer, "_rebuild_buckets")
    if ddp.reducer._rebuild_buckets():
        ddp._has_rebuilt_buckets = True


def _make_ready(ddp: DistributedDataParallel, order: Sequence[int]) -> None:
    """One backward pass in which the gradients become ready in this order."""
    require(ddp.reducer, "prepare_for_forward", "prepare_for_backward", "_autograd_hook")
    parameters, _ = reduced_parameters(ddp)
    before = [parameter.grad for parameter in parameters]
    ready = [parameters[index] for index in order]
    try:
        with torch.enable_grad(), uncounted(ddp):
            ddp.reducer.prepare_for_forward()  # DDP exposes its buckets from the first pass on
            ddp.reducer.prepare_for_backward([])
            begin = torch.zeros((), requires_grad=True)
            _Ready.apply(begin, ddp.reducer, order, ready).backward()  # type: ignore[no-untyped-call]
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


class _Reducer(Protocol):
    """DDP's reducer, which torch's annotations omit."""

    def _autograd_hook(self, index: int) -> None: ...


class _Context(Protocol):
    """The context of the pass."""

    reducer: _Reducer
    order: Sequence[int]
    parameters: Sequence[Tensor]


class _Ready(torch.autograd.Function):
    """DDP's hooks may be called within a backward pass only: this is one that consists of them."""

    @staticmethod
    def forward(
        ctx: _Context, begin: Tensor, reducer: _Reducer, order: Sequence[int], parameters: Sequence[Tensor]
    ) -> Tensor:
        ctx.reducer, ctx.order, ctx.parameters = reducer, order, parameters
        return begin.clone()

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        for index, parameter in zip(ctx.order, ctx.parameters, strict=True):
            parameter.grad = torch.zeros_like(parameter)
            ctx.reducer._autograd_hook(index)
        return torch.zeros_like(gradient), None, None, None
