# SPDX-License-Identifier: Apache-2.0
"""Restores a partitioned module for checkpoints, before weights are loaded, and after the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.averages import averages_of
from lightning_sagemaker._compat.trainer import bare_optimizer, callbacks_of
from lightning_sagemaker._lightning import rank_zero_warn
from lightning_sagemaker.checkpoint.trainer_format import read_checkpoint, write_stages
from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.model import PipelinedModel
from lightning_sagemaker.strategies.script_gradients import ScriptGradients
from lightning_sagemaker.strategies.sharded_checkpoints import ShardedCheckpoints

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lightning_sagemaker._lightning import DDPStrategy as Host
    from lightning_sagemaker._types import Checkpoint, PathLike, StateDict
else:
    Host = object


class PipelineCheckpoints(ShardedCheckpoints, Host):
    """Mixin before a strategy whose module is partitioned at its first step."""

    saves_parts: bool
    _pipeline: PipelinedModel | None = None
    _script_gradients: ScriptGradients | None = None
    _failed = False
    _groups: ParallelGroups | None = None

    @property
    def groups(self) -> ParallelGroups:
        """This process's position in the parallel layout, and its process groups; available after launch."""
        assert self._groups is not None
        return self._groups

    def save_checkpoint(self, checkpoint: Checkpoint, filepath: PathLike, storage_options: object = None) -> None:
        """Write a checkpoint; called on all processes.

        Raises:
            RuntimeError: On all processes, if one cannot write its shard.

        """
        if self.saves_parts:
            self._checkpointer.save(checkpoint, filepath, write_stages)
        else:
            super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: PathLike, weights_only: bool | None = None) -> StateDict:
        """Read a complete checkpoint, of either kind, on each process."""
        load_file = super().load_checkpoint

        def read(path: PathLike) -> StateDict:
            if Path(path).is_dir():
                return read_checkpoint(Path(path))
            content: StateDict = load_file(path, weights_only)
            return content

        return self._checkpointer.load(checkpoint_path, read) if self.saves_parts else read(checkpoint_path)

    def load_model_state_dict(self, checkpoint: Mapping[str, object], strict: bool = True) -> None:
        """Load into the complete module, which is partitioned again at its next step (as with a learning rate finder)."""
        if self._pipeline is not None:
            self._restore_module()
        super().load_model_state_dict(checkpoint, strict)

    def lightning_module_state_dict(self) -> StateDict:
        """The complete model's state on rank zero; for sharded checkpoints, this process's.

        Collective over all processes.
        """
        state: StateDict = super().lightning_module_state_dict()
        if self._pipeline is None:
            return state
        return self._pipeline.own_state(state) if self.saves_parts else self._pipeline.gather(state)

    def optimizer_state(self, optimizer: Optimizer) -> Checkpoint:
        """As :meth:`lightning_module_state_dict`."""
        if self._pipeline is None:
            return super().optimizer_state(optimizer)
        kind = self._pipeline.own_optimizer if self.saves_parts else self._pipeline.gather_optimizer
        return kind(bare_optimizer(optimizer))

    def _partition_averages_and_states(self, pipeline: PipelinedModel) -> None:
        """Partition averages of the module's weights, and the optimizers' states, like the module."""
        for average in averages_of(callbacks_of(self.lightning_module.trainer)):  # type: ignore[union-attr]
            pipeline.follow(average)
        for optimizer in self.optimizers:
            pipeline.keep_own_state(optimizer)

    def _restore_module(self) -> None:
        """Restore the full module on all processes, and the complete optimizer state on the first one."""
        pipeline = self._pipeline
        assert pipeline is not None
        states = [pipeline.gather_optimizer(optimizer) for optimizer in self.optimizers]
        pipeline.restore()
        self._pipeline = None
        self._restore_functions()
        if self.global_rank == self.groups.pipeline_ranks[0]:
            for optimizer, state in zip(self.optimizers, states, strict=True):
                optimizer.load_state_dict(state)

    def _restore_functions(self) -> None:
        if self._script_gradients is not None:
            self._script_gradients.restore()
            self._script_gradients = None

    def on_exception(self, exception: BaseException) -> None:
        """Called when a stage fails."""
        self._failed = True
        super().on_exception(exception)

    def teardown(self) -> None:
        """Called when the Trainer ends a stage: the module is left complete, unless it has failed."""
        self._restore_functions()
        if self._pipeline is not None:
            if self._failed:  # another process may have exited, and gathering would wait for it
                rank_zero_warn("After the error the module remains partitioned: each process has its own stages only.")
            elif not self._pipeline.was_delayed:  # otherwise the model may exceed a process's memory
                self._restore_module()
        super().teardown()
