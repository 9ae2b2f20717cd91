# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.distributed.fsdp.checkpoint``, which scripts for versions 2.0 to 2.6 save and load with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

from lightning_sagemaker.torch_sagemaker.distributed.checkpoint.state_dict_utils import (
    SMStateDictType,
    init_optim_state,
    sm_state_dict_type,
)

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lightning_sagemaker._types import Checkpoint, PathLike, StateDict

EXPORT_KEY_MODEL = "model"
EXPORT_KEY_OPTIMIZER = "optimizer"
EXPORT_KEY_SCHEDULER = "scheduler"
EXPORT_KEY_IDENTITY = "identity"
"""Keys of what :func:`load_model_checkpoint` returns; the last has the script's own values."""


class Scheduler(Protocol):
    """A learning-rate scheduler of torch, or of a script."""

    def state_dict(self) -> StateDict:
        """Its state."""

    def load_state_dict(self, state_dict: StateDict, /) -> object:
        """Restore its state."""


def save_model_checkpoint(
    model: FullyShardedDataParallel,
    state_dict_type: StateDictType | SMStateDictType,
    save_dir: PathLike,
    sharding_strategy: object = None,
    checkpointing_pg_metadata: object = None,
    log: bool = False,
    optimizer: Optimizer | None = None,
    scheduler: Scheduler | None = None,
    extra_exports: Mapping[str, object] | None = None,
) -> None:
    """Save a training's state with ``torch.distributed.checkpoint``. Collective over all processes.

    Args:
        model: Model wrapped in FSDP.
        state_dict_type: FSDP's or AWS's type of the state dict.
        save_dir: Folder that all processes share.
        sharding_strategy: Without effect: FSDP knows its own.
        checkpointing_pg_metadata: Without effect: of equal parts of several replicas one is written.
        log: Whether to print the folder.
        optimizer: Optimizer of the model.
        scheduler: Its learning-rate scheduler.
        extra_exports: Values of the script, by name.

    """
    content = _content(model, state_dict_type, optimizer, scheduler, extra_exports)
    dcp.save(content, checkpoint_id=save_dir)
    if log:
        print(f"saved {', '.join(content)} to {save_dir}")


def load_model_checkpoint(
    model: FullyShardedDataParallel,
    state_dict_type: StateDictType | SMStateDictType,
    checkpoint_dir: PathLike,
    sharding_strategy: object = None,
    checkpointing_pg_metadata: object = None,
    log: bool = False,
    optimizer: Optimizer | None = None,
    scheduler: Scheduler | None = None,
    extra_imports: Mapping[str, object] | None = None,
) -> StateDict:
    """Restore in place what :func:`save_model_checkpoint` saved, with any layout. Collective over all processes.

    Args:
        model: Model wrapped in FSDP.
        state_dict_type: FSDP's or AWS's type of the state dict, as it was saved.
        checkpoint_dir: Folder.
        sharding_strategy: Without effect.
        checkpointing_pg_metadata: Without effect.
        log: Whether to print the folder.
        optimizer: Optimizer of the model.
        scheduler: Its learning-rate scheduler.
        extra_imports: Names of the script's values that were saved, with any values.

    Returns:
        The model, the optimizer and the scheduler, by this module's keys, and the script's values by name.

    """
    if optimizer is not None and not optimizer.state:
        init_optim_state(optimizer)
    content = _content(model, state_dict_type, optimizer, scheduler, extra_imports)
    dcp.load(content, checkpoint_id=checkpoint_dir)
    with sm_state_dict_type(model, state_dict_type):
        model.load_state_dict(content[EXPORT_KEY_MODEL])
        if optimizer is not None:
            optimizer.load_state_dict(
                FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, content[EXPORT_KEY_OPTIMIZER])
            )
    if scheduler is not None:
        scheduler.load_state_dict(content[EXPORT_KEY_SCHEDULER])
    if log:
        print(f"loaded {', '.join(content)} from {checkpoint_dir}")
    return {
        EXPORT_KEY_MODEL: model,
        EXPORT_KEY_OPTIMIZER: optimizer,
        EXPORT_KEY_SCHEDULER: scheduler,
        EXPORT_KEY_IDENTITY: content.get(EXPORT_KEY_IDENTITY, {}),
    }


def _content(
    model: FullyShardedDataParallel,
    state_dict_type: StateDictType | SMStateDictType,
    optimizer: Optimizer | None,
    scheduler: Scheduler | None,
    own: Mapping[str, object] | None,
) -> Checkpoint:
    with sm_state_dict_type(model, state_dict_type):
        content: Checkpoint = {EXPORT_KEY_MODEL: model.state_dict()}
        if optimizer is not None:
            content[EXPORT_KEY_OPTIMIZER] = FullyShardedDataParallel.optim_state_dict(model, optimizer)
    if scheduler is not None:
        content[EXPORT_KEY_SCHEDULER] = scheduler.state_dict()
    if own:
        content[EXPORT_KEY_IDENTITY] = dict(own)
    return content
