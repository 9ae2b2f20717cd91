# SPDX-License-Identifier: Apache-2.0
"""Exact states of sharded optimizers, even if empty: before the first step, and for SGD without momentum.

To initialize the state, torch (2.13) first makes a step without gradients, which Adam counts: a job that
was stopped before its first step would correct its averages for one step too many. Lightning (2.6.6) fails to read a file
whose optimizers have no state.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint import state_dict

from lightning_sagemaker._compat.param_groups import group_options, set_group_options
from lightning_sagemaker._lightning import FabricModelParallelStrategy

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from lightning_sagemaker._types import Checkpoint

_STEP = "step"


@contextmanager
def exact_optimizer_states() -> Iterator[None]:
    """Context in which optimizers that have not stepped yet, or have no state, can be saved and loaded."""
    # The module of Fabric's strategy; the Trainer's uses its functions.
    lightnings, torchs = sys.modules[FabricModelParallelStrategy.__module__], state_dict
    rekey: Callable[[Checkpoint, nn.Module], Checkpoint] = lightnings._rekey_optimizer_state_if_needed
    put: Callable[..., None] = torchs.set_optimizer_state_dict
    make = torchs._init_optim_state

    def make_unstepped(optimizer: Optimizer) -> None:
        is_new = not optimizer.state
        make(optimizer)
        if is_new:
            for state in optimizer.state.values():
                if _STEP in state:
                    count = state[_STEP]
                    state[_STEP] = torch.zeros_like(count) if isinstance(count, torch.Tensor) else 0

    def rekey_if_any(state: Checkpoint, model: nn.Module) -> Checkpoint:
        return rekey(state, model) if state["state"] else state

    def put_if_any(
        model: nn.Module, optimizers: Optimizer, *arguments: object, optim_state_dict: Checkpoint, **options: object
    ) -> None:
        if optim_state_dict.get("state", True):
            put(model, optimizers, *arguments, optim_state_dict=optim_state_dict, **options)
            return
        optimizers.state.clear()
        set_group_options(optimizers.param_groups, group_options(optim_state_dict["param_groups"]))

    vars(lightnings)["_rekey_optimizer_state_if_needed"] = rekey_if_any
    vars(torchs).update(set_optimizer_state_dict=put_if_any, _init_optim_state=make_unstepped)
    try:
        yield
    finally:
        vars(lightnings)["_rekey_optimizer_state_if_needed"] = rekey
        vars(torchs).update(set_optimizer_state_dict=put, _init_optim_state=make)
