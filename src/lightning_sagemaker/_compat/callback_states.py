# SPDX-License-Identifier: Apache-2.0
"""States of callbacks: as Lightning writes them, where ranks differ, and those that are in no checkpoint."""

from __future__ import annotations

import pickle
import zlib
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lightning_sagemaker._compat.param_groups import group_options, set_group_options
from lightning_sagemaker._compat.plain_copy import is_small, plain_copy
from lightning_sagemaker._compat.trainer import callbacks_of

if TYPE_CHECKING:
    from lightning_sagemaker._types import StateDict, Trainer


def callback_states(trainer: Trainer) -> dict[str, StateDict]:
    """Current states of callbacks, as Lightning writes them. Large tensors (averages, changed by steps) are not copied."""
    states = {callback.state_key: callback.state_dict() for callback in callbacks_of(trainer)}
    return {key: plain_copy(state) for key, state in states.items() if state}


def own_callback_states(trainer: Trainer, states: dict[str, StateDict]) -> dict[str, StateDict]:
    """The entries of :func:`callback_states` that differ from rank zero's, which a checkpoint has. Collective.

    Callbacks that follow a metric which is not reduced have received other values on each rank. States with large tensors
    are the same on all ranks.
    """
    sums: list[dict[str, int]] = [
        {key: zlib.crc32(pickle.dumps(state)) for key, state in states.items() if is_small(state)}
    ]
    own = dict(sums[0])
    if trainer.world_size > 1:
        dist.broadcast_object_list(sums, src=0)
    return {key: states[key] for key, value in own.items() if sums[0].get(key) != value}


def restore_callback_states(trainer: Trainer, states: dict[str, StateDict]) -> None:
    """Restore the result of :func:`own_callback_states`, from copies, as callbacks change the containers that they load."""
    for callback in callbacks_of(trainer):
        if callback.state_key in states:
            callback.load_state_dict(plain_copy(states[callback.state_key]))


_AGAIN = ("GradientAccumulationScheduler", "StochasticWeightAveraging")
"""Callbacks of Lightning whose hook at the start of an epoch sets state that is in no checkpoint."""


def begin_epoch_again(trainer: Trainer) -> None:
    """Call these callbacks' hooks for a resumed epoch, whose first hooks are not repeated; learning rates stay as loaded."""
    module = trainer.lightning_module
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    options = [group_options(optimizer.param_groups) for optimizer in trainer.optimizers]
    for callback in callbacks_of(trainer):
        if any(kind.__name__ in _AGAIN for kind in type(callback).__mro__):
            callback.on_train_epoch_start(trainer, module)
    for optimizer, before in zip(trainer.optimizers, options, strict=True):
        set_group_options(optimizer.param_groups, before)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
