# SPDX-License-Identifier: Apache-2.0
"""Observes the results of the default group's collectives."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch
import torch.distributed as dist

from lightning_sagemaker._compat.guard import require

_c10d = import_module("torch.distributed.distributed_c10d")
require(_c10d, "_world")

_SAME = ("_allgather_base", "allgather", "allgather_coalesced", "allreduce", "allreduce_coalesced", "broadcast")
"""Methods whose results, in their first argument, are the same on all ranks."""
require(dist.ProcessGroup, *_SAME)
_SAME_TOO = ("all_gather_single", "all_gather_single_coalesced", "allgather_into_tensor_coalesced")
"""Further such methods, which not all versions of torch have: 2.5 has only the last one."""


def watch_results(wanted: Callable[[], bool], seen: Callable[[str, list[torch.Tensor]], None]) -> Callable[[], None]:
    """Observe results of the default group's collectives that are the same on all ranks.

    Args:
        wanted: Whether a collective that is called now is observed: then it is awaited, even if asynchronous.
        seen: Called with the collective's name and its results.

    Returns:
        A function that restores the usual state.

    """
    methods = vars(dist.ProcessGroup)  # getattr would unbind them
    usual = {name: methods[name] for name in (*_SAME, *_SAME_TOO) if name in methods}

    def watching(name: str) -> Callable[..., object]:
        def call(group: dist.ProcessGroup, outputs: object, *arguments: object, **keywords: object) -> object:
            work = usual[name](group, outputs, *arguments, **keywords)
            if group is _c10d._world.default_pg and wanted():
                if work is not None:
                    work.wait()
                seen(name, tensors_in(outputs))
            return work

        return call

    for name in usual:
        setattr(dist.ProcessGroup, name, watching(name))

    def end() -> None:
        for name, method in usual.items():
            setattr(dist.ProcessGroup, name, method)

    return end


def tensors_in(value: object) -> list[torch.Tensor]:
    """The tensors in nested lists, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for part in value for one in tensors_in(part)] if isinstance(value, (list, tuple)) else []
