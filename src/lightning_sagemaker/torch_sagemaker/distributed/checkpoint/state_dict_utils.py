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
    """AWS's own type of state dict."""

    SM_LOCAL_STATE_DICT = "sm_local"


def sm_state_dict_type(
    model: nn.Module,
    state_dict_type: StateDictType | SMStateDictType,
    state_dict_config: StateDictConfig | None = None,
    optim_state_dict_config: OptimStateDictConfig | None = None,
) -> AbstractContextManager[object]:
    """FSDP's ``state_dict_type``; AWS's local type is the sharded one here, which any number of processes can load.

    Args:
        model: Model wrapped in FSDP.
        state_dict_type: FSDP's or AWS's type.
        state_dict_config: FSDP's configuration of the model's state dict.
        optim_state_dict_config: FSDP's configuration of the optimizer's state dict.

    """
    if isinstance(state_dict_type, SMStateDictType):
        state_dict_type = StateDictType.SHARDED_STATE_DICT
    context: AbstractContextManager[object] = FullyShardedDataParallel.state_dict_type(
        model, state_dict_type, state_dict_config, optim_state_dict_config
    )
    return context


def init_optim_state(optimizer: torch.optim.Optimizer, skip_empty_param: bool = True) -> None:
    """Create the optimizer's state, without changing parameters, so that a saved state can be loaded into it.

    Args:
        optimizer: Optimizer whose parameters have no gradients.
        skip_empty_param: Without effect: parameters without elements on this process get an empty state.

    """
    _init_optim_state(optimizer)
