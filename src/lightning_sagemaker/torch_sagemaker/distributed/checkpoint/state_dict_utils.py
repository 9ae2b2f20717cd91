# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.distributed.checkpoint.state_dict_utils``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.state_dict import _init_optim_state
from torch.distributed.fsdp import FullyShardedDataParallel, OptimStateDictConfig, StateDictConfig, StateDictType

if TYPE_CHECKING:
    from torch import nn


class SMStateDictType(Enum):
    """AWS's own kind of state."""

    SM_LOCAL_STATE_DICT = "sm_local"


def sm_state_dict_type(
    model: nn.Module,
    state_dict_type: StateDictType | SMStateDictType,
    state_dict_config: StateDictConfig | None = None,
    optim_state_dict_config: OptimStateDictConfig | None = None,
) -> AbstractContextManager[object]:
    """FSDP's ``state_dict_type``; AWS's local kind is the sharded one here, which any number of processes can load.

    Args:
        model: Wrapped in FSDP.
        state_dict_type: FSDP's or AWS's.
        state_dict_config: Configuration of FSDP.
        optim_state_dict_config: Configuration of FSDP.

    """
    if isinstance(state_dict_type, SMStateDictType):
        state_dict_type = StateDictType.SHARDED_STATE_DICT
    context: AbstractContextManager[object] = FullyShardedDataParallel.state_dict_type(
        model, state_dict_type, state_dict_config, optim_state_dict_config
    )
    return context


def init_optim_state(optimizer: torch.optim.Optimizer, skip_empty_param: bool = True) -> None:
    """Let the optimizer make its state, without a change to the parameters, so that one can be loaded into it.

    Args:
        optimizer: Without gradients.
        skip_empty_param: Without effect: parameters of which this process has nothing get an empty state.

    """
    _init_optim_state(optimizer)
