# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.distributed.checkpoint.state_dict_utils``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.state_dict import _init_optim_state
from torch.distributed.fsdp import FullyShardedDataParallel, OptimStateDictConfig, StateDictConfig, StateDictType

from lightning_sagemaker._compat.dtensor import local_of

if TYPE_CHECKING:
    from torch import nn


class SMStateDictType(Enum):
    """AWS's own type of state dict."""

    SM_LOCAL_STATE_DICT = "sm_local"


class LocalState(dict[str, object]):
    """A model's state of AWS's local type: what is loaded into it, the model has.

    Args:
        model: Model wrapped in FSDP.
        content: Its sharded state.

    """

    def __init__(self, model: nn.Module, content: Mapping[str, object]) -> None:
        super().__init__(content)
        self._model = model

    def apply(self) -> None:
        """Load it into the model, of whose parameters it has copies. Collective."""
        with FullyShardedDataParallel.state_dict_type(self._model, StateDictType.SHARDED_STATE_DICT):
            self._model.load_state_dict(dict(self))


@contextmanager
def sm_state_dict_type(
    model: nn.Module,
    state_dict_type: StateDictType | SMStateDictType,
    state_dict_config: StateDictConfig | None = None,
    optim_state_dict_config: OptimStateDictConfig | None = None,
) -> Iterator[None]:
    """FSDP's ``state_dict_type``; AWS's local type is the sharded one here, which any number of processes can load.

    As AWS's, it refers to the parameters: ``load`` into it changes the model.

    Args:
        model: Model wrapped in FSDP.
        state_dict_type: FSDP's or AWS's type.
        state_dict_config: FSDP's configuration of the model's state dict.
        optim_state_dict_config: FSDP's configuration of the optimizer's state dict.

    """
    is_local = isinstance(state_dict_type, SMStateDictType)
    if isinstance(state_dict_type, SMStateDictType):
        state_dict_type = StateDictType.SHARDED_STATE_DICT
    with FullyShardedDataParallel.state_dict_type(model, state_dict_type, state_dict_config, optim_state_dict_config):
        if not is_local:
            yield
            return
        before, sharded_state = vars(model).get("state_dict"), model.state_dict
        vars(model)["state_dict"] = lambda *args, **options: LocalState(model, sharded_state(*args, **options))
        try:
            yield
        finally:
            del vars(model)["state_dict"]
            if before is not None:
                vars(model)["state_dict"] = before


def init_optim_state(optimizer: torch.optim.Optimizer, skip_empty_param: bool = True) -> None:
    """Create the optimizer's state, without changing parameters, so that a saved state can be loaded into it.

    Args:
        optimizer: Optimizer whose parameters have no gradients.
        skip_empty_param: Whether parameters without elements on this process get no state, as in training.

    """
    _init_optim_state(optimizer)
    if skip_empty_param:
        for parameter in [parameter for parameter in optimizer.state if not local_of(parameter).numel()]:
            del optimizer.state[parameter]
