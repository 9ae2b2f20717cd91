# SPDX-License-Identifier: Apache-2.0
"""A partitioned module whose parameters are materialized on the processes of their stages only."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_sagemaker._compat.averages import keep_averages
from lightning_sagemaker._compat.param_groups import parameters_in
from lightning_sagemaker._compat.trainer import bare_optimizer, callbacks_of
from lightning_sagemaker._lightning import TorchCheckpointIO, rank_zero_info, rank_zero_warn
from lightning_sagemaker.parallel import delayed
from lightning_sagemaker.parallel.degrees import ParallelDegrees
from lightning_sagemaker.parallel.model import PipelinedModel

if TYPE_CHECKING:
    from lightning_sagemaker._lightning import DDPStrategy as Host
    from lightning_sagemaker._types import LightningModule, PathLike, StateDict
else:
    Host = object


class DelayedModel(Host):
    """Mixin before a strategy whose module is partitioned at its first step.

    Parameters that ``configure_model`` creates are on the meta device until then, if the job or the script requests it
    (``delayed_parameter_initialization``), as are those that the script has put there. Checkpoints are read only
    then.
    """

    degrees: ParallelDegrees
    _pipeline: PipelinedModel | None
    _states: list[Mapping[int, StateDict]] = []
    """Optimizer states from a checkpoint, until it is known which of them this process needs."""

    @property
    def _module(self) -> LightningModule:
        module = self.lightning_module
        assert module is not None
        return module

    def setup_environment(self) -> None:
        """Called before any process group is created."""
        delayed.check(self._module)
        super().setup_environment()

    @contextmanager
    def tensor_init_context(self, empty_init: bool | None = None) -> Iterator[None]:
        """Context for ``configure_model``: Lightning's, but on the CPU, where stages are created."""
        with super().tensor_init_context(empty_init), torch.device("cpu"):
            yield

    @contextmanager
    def model_sharded_context(self) -> Iterator[None]:
        """Context for ``configure_model`` that moves new parameters to the meta device."""
        if not self.degrees.delayed:
            yield
            return
        if keep_averages(callbacks_of(self._module.trainer)):
            rank_zero_info(
                "delayed_parameter_initialization has no effect with a callback that averages weights, which copies the"
                " full model."
            )
            yield
            return
        with delayed.delayed_parameters():
            yield

    def model_to_device(self) -> None:
        """Move this process's stages to the device, once the module is partitioned: before, it may not fit on one device."""
        if self._pipeline is not None:
            super().model_to_device()
        elif self.degrees.delayed and not delayed.is_delayed(self._module):
            rank_zero_warn(
                f"delayed_parameter_initialization was set, but {type(self._module).__name__} holds all its parameters on"
                " each process. HINT: build the model in configure_model() instead of __init__()."
            )

    def load_checkpoint(self, checkpoint_path: PathLike, weights_only: bool | None = None) -> StateDict:
        """Read a checkpoint; the tensors of a local file are memory-mapped, and read where they are needed."""
        is_file = Path(checkpoint_path).is_file() and zipfile.is_zipfile(checkpoint_path)
        if not (is_file and isinstance(self.checkpoint_io, TorchCheckpointIO) and delayed.is_delayed(self._module)):
            return super().load_checkpoint(checkpoint_path, weights_only)
        is_data = True if weights_only is None else weights_only
        content: StateDict = torch.load(checkpoint_path, map_location="cpu", mmap=True, weights_only=is_data)
        return content

    def load_model_state_dict(self, checkpoint: Mapping[str, object], strict: bool = True) -> None:
        """Load weights: before the module is partitioned, lazily; afterwards, those of this process."""
        state = checkpoint["state_dict"]
        assert isinstance(state, Mapping)
        if self._pipeline is not None and self._pipeline.was_delayed:
            self._pipeline.load(state)
            return
        with delayed.loading(self._module, state):
            super().load_model_state_dict(checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, object]) -> None:
        """Load optimizers: their options at once, their states once it is known which ones are needed."""
        if self._pipeline is None and not delayed.is_delayed(self._module):
            super().load_optimizer_state_dict(checkpoint)
            return
        states = checkpoint["optimizer_states"]
        assert isinstance(states, list)
        self._states = [state["state"] for state in states]
        super().load_optimizer_state_dict({"optimizer_states": [{**state, "state": {}} for state in states]})
        if self._pipeline is not None:
            self._load_own_states(self._pipeline)

    def _load_own_states(self, pipeline: PipelinedModel) -> None:
        """Load the optimizer states of this process's parameters."""
        for optimizer, states in zip(self.optimizers, self._states, strict=False):
            inner = bare_optimizer(optimizer)
            parameters = parameters_in(inner.param_groups)
            own = {
                number: {key: _copied(value) for key, value in state.items()}
                for number, state in states.items()
                if not pipeline.stages.is_absent(parameters[number])
            }
            inner.load_state_dict({"state": own, "param_groups": inner.state_dict()["param_groups"]})
        self._states = []

    def teardown(self) -> None:
        """Called when the Trainer ends a stage, also after an error before parameters were materialized."""
        module = self._module
        if not delayed.is_delayed(module):
            super().teardown()
            return
        vars(module)["cpu"] = lambda: module
        try:
            super().teardown()
        finally:
            del vars(module)["cpu"]

    def lightning_module_state_dict(self) -> StateDict:
        """The complete model's state, also while parameters are on the meta device."""
        state: StateDict = super().lightning_module_state_dict()
        if self._pipeline is not None or not delayed.is_delayed(self._module):
            return state
        return delayed.full_state(self._module, state)


def _copied(value: object) -> object:
    """Copy a tensor of a memory-mapped file to memory."""
    return value.clone() if isinstance(value, Tensor) else value
