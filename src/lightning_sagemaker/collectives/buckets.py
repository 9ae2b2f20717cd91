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
        NameGone: If this version of torch does not expose the buckets.

    """
    if not isinstance(ddp_module, DistributedDataParallel) or _obstacle(ddp_module) is not None:
        return None
    _rebuild(ddp_module)
    return _rebuilt_layout(ddp_module)


def rebuild_as(ddp_module: nn.Module | None, layout: Sequence[Sequence[int]] | None) -> bool:
    """Restore DDP's buckets from another run, before its first step. Collective over all ranks.

    The gradients of all parameters are marked ready, in the order of ``layout``; they are zeros, and are reduced. No
    user code runs: no forward pass, no hook of a parameter. Parameters, buffers, random states and gradients are
    unchanged afterwards.

    Args:
        ddp_module: The wrapper, or a module without one.
        layout: The result of :func:`bucket_layout`; None to do nothing.

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
        if _rebuilt_layout(ddp_module) != [list(bucket) for bucket in layout]:
            why = "bucket sizes differ from the checkpoint's"
    if why is not None:
        rank_zero_info(f"The first step may differ by rounding from that of an uninterrupted run: {why}.")
    return why is None


def _obstacle(ddp: DistributedDataParallel) -> str | None:
    """Why this wrapper's buckets cannot be rebuilt, the same on all ranks; None if they can."""
    require(ddp, "reducer", "logger", "static_graph", "find_unused_parameters", "process_group", "_comm_hooks")
    require(ddp, "_has_rebuilt_buckets", "_build_params_for_reducer", "_get_ddp_logging_data")
    if ddp.find_unused_parameters:
        return "DDP does not rebuild buckets with find_unused_parameters"
    if ddp.static_graph:
        return "DDP records its first step with static_graph"
    if own_reducer(ddp) is None and (ddp._comm_hooks or _logging_data(ddp).get(_HOOK)):
        return "the rebuild would run the wrapper's communication hook"
    if getattr(ddp, "_use_python_reducer", False) or getattr(ddp, "_delay_all_reduce_all_params", False):
        return "DDP is configured not to reduce in buckets"
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in ddp.parameters()):
        return "the optimizer runs within the backward pass"
    if ddp.process_group.size() == 1:
        return "there is only one process"
    return None


def _mismatch(ddp: DistributedDataParallel, layout: Sequence[Sequence[int]]) -> str | None:
    """Why ``layout`` cannot be applied to this wrapper; None if it can."""
    parameters, sparse = reduced_parameters(ddp)
    if sorted(index for bucket in layout for index in bucket) != list(range(len(parameters))):
        return f"the checkpoint's buckets are not of the {len(parameters)} parameters of this model"
    if any(sparse):
        return "gradients are sparse"
    if _rebuilt_layout(ddp) is not None:
        return "a step has already run"
    return None


def _logging_data(ddp: DistributedDataParallel) -> dict[str, object]:
    """DDP's logging data of its last forward pass."""
    data: dict[str, object] = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return data


def _rebuilt_layout(ddp: DistributedDataParallel) -> Layout | None:
    require(ddp.logger, "set_runtime_stats_and_log")
    assert ddp.logger is not None
    ddp.logger.set_runtime_stats_and_log()  # updates the data that is read below
    rebuilt = _logging_data(ddp).get(_REBUILT)
    return None if not rebuilt else [[int(index) for index in bucket.split()] for bucket in str(rebuilt).split(",")]


def _rebuild(ddp: DistributedDataParallel) -> None:
    """Run the rebuild of DDP's next forward pass now; does nothing before the first gradients, or if already rebuilt."""
    require(ddp.reducer, "_rebuild_buckets")
    if ddp.reducer._rebuild_buckets():
        ddp._has_rebuilt_buckets = True


def _make_ready(ddp: DistributedDataParallel, order: Sequence[int]) -> None:
    """Run a backward pass in which the gradients become ready in ``order``, given as parameter indices."""
    require(ddp.reducer, "prepare_for_forward", "prepare_for_backward", "_autograd_hook")
    parameters, _ = reduced_parameters(ddp)
    before = [parameter.grad for parameter in parameters]
    ready = [parameters[index] for index in order]
    try:
        with torch.enable_grad(), uncounted(ddp):
            ddp.reducer.prepare_for_forward()  # until its first forward pass DDP does not expose its buckets
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
    """The autograd context of :class:`_Ready`."""

    reducer: _Reducer
    order: Sequence[int]
    parameters: Sequence[Tensor]


class _Ready(torch.autograd.Function):
    """Calls DDP's autograd hooks from a backward pass, the only place where they may be called."""

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
