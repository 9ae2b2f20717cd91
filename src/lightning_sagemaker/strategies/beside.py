# SPDX-License-Identifier: Apache-2.0
"""Checkpoints written while the training goes on, as an option of the strategies that shard parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.nn import Module
from torch.optim import Optimizer

from lightning_sagemaker._lightning import MisconfigurationException
from lightning_sagemaker.checkpoint.background import BackgroundSave
from lightning_sagemaker.checkpoint.s3 import S3CheckpointIO

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, LightningModule, PathLike, StateDict

_PATIENCE = 60.0
"""Seconds that a checkpoint under way is given when the Trainer ends, by an error too."""


class WritesBeside:
    """Mixin before :class:`~lightning_sagemaker.strategies.sharded.SMPShardedStrategy`'s base.

    Args:
        async_checkpoint: Checkpoints of a fit are copied in memory, and written from there while it goes on, each process
            its part. One that failed is an error at the next, or at the end of the fit, on all processes. Implies
            ``save_distributed_checkpoint``.
        save_distributed_checkpoint: Each process writes its part, into a folder; else the first writes one file.
        **kwargs: Those of the strategy.

    Raises:
        MisconfigurationException: If one file is asked for beside the training.

    """

    global_rank: int
    world_size: int
    model: Module | None
    optimizers: list[Optimizer]
    lightning_module: LightningModule
    remote_checkpoints: S3CheckpointIO

    def __init__(
        self,
        *args: Any,
        async_checkpoint: bool = False,
        save_distributed_checkpoint: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if async_checkpoint and save_distributed_checkpoint is False:
            raise MisconfigurationException(
                "async_checkpoint=True was set beside save_distributed_checkpoint=False, but what is written beside the"
                " training is a folder of parts. HINT: leave one out; `lightning-sagemaker convert` makes one file of it."
            )
        in_parts = async_checkpoint or bool(save_distributed_checkpoint)
        super().__init__(*args, **{**kwargs, "save_distributed_checkpoint": in_parts})
        self.async_checkpoint = async_checkpoint
        self._background: BackgroundSave | None = None

    @property
    def background_seconds(self) -> float:
        """What the last checkpoint took from its beginning until it was complete."""
        return self._background.seconds if self._background is not None else 0.0

    @property
    def update_wait_seconds(self) -> float:
        """What the update after the last checkpoint's beginning waited for copies of the optimizer states."""
        return self._background.deferred.waited if self._background is not None else 0.0

    def lightning_module_state_dict(self) -> StateDict:
        """The weights of this process; where they are copied for a checkpoint anyway, as they are."""
        if not self.async_checkpoint:
            found: StateDict = super().lightning_module_state_dict()  # type: ignore[misc]
            return found
        assert self.model is not None
        return dict(get_model_state_dict(self.model, options=StateDictOptions()))

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The states of this process, likewise."""
        if not self.async_checkpoint:
            found: dict[str, Any] = super().optimizer_state(optimizer)  # type: ignore[misc]
            return found
        optimizer = getattr(optimizer, "_optimizer", optimizer)  # without LightningOptimizer around it
        assert self.model is not None
        return dict(get_optimizer_state_dict(self.model, optimizer, options=StateDictOptions()))

    def save_checkpoint(self, checkpoint: Checkpoint, filepath: PathLike, storage_options: object = None) -> None:
        """Begin to write a checkpoint; called on all processes.

        Raises:
            RuntimeError: On all of them, if the last one failed.

        """
        if not self.async_checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)  # type: ignore[misc]
            return
        if self._background is None:
            self._background = BackgroundSave(self.global_rank, self.world_size, lambda: self.remote_checkpoints)
        rest = dict(checkpoint)
        parts = {"state_dict": rest.pop("state_dict")}
        for number, state in enumerate(rest.pop("optimizer_states", [])):
            parts[f"optimizer_{number}"] = state
        optimizers = {f"optimizer_{number}": optimizer for number, optimizer in enumerate(self.optimizers)}
        deferred = {name: found for name, found in optimizers.items() if isinstance(found, Optimizer)}
        self._background.begin(parts, rest, str(filepath), deferred)
        if self.lightning_module.trainer.state.finished:  # nothing goes on beside which it could be written
            self.finish_saving()

    def barrier(self, name: str | None = None) -> None:
        """Wait for all processes; not after a checkpoint has begun to be written, as none can rely on it yet."""
        if not (self.async_checkpoint and name == "Trainer.save_checkpoint"):
            super().barrier(name)  # type: ignore[misc]

    def finish_saving(self) -> None:
        """Wait for a checkpoint under way.

        Raises:
            RuntimeError: On all processes, if one could not write its part.

        """
        if self._background is not None:
            self._background.finish()

    def load_checkpoint(self, checkpoint_path: PathLike, weights_only: bool | None = None) -> Checkpoint:
        """Read a checkpoint; called on all processes."""
        self.finish_saving()
        found: Checkpoint = super().load_checkpoint(checkpoint_path, weights_only)  # type: ignore[misc]
        return found

    def remove_checkpoint(self, filepath: PathLike) -> None:
        """Remove a checkpoint; one that a checkpoint under way takes the place of, when that one is whole."""
        if self._background is not None and self._background.is_under_way:
            self._background.after(lambda: self._remove(filepath))
        else:
            self._remove(filepath)

    def _remove(self, filepath: PathLike) -> None:
        super().remove_checkpoint(filepath)  # type: ignore[misc]

    def on_train_end(self) -> None:
        """Called when a fit ends well."""
        super().on_train_end()  # type: ignore[misc]
        self.finish_saving()

    def teardown(self) -> None:
        """Called when the Trainer ends, by an error too."""
        if self._background is not None:
            self._background.give_up(_PATIENCE)
        super().teardown()  # type: ignore[misc]
