# SPDX-License-Identifier: Apache-2.0
"""Asynchronous checkpoints, as an option of the strategies that shard parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.nn import Module
from torch.optim import Optimizer

from lightning_sagemaker._compat.optimizer_states import exact_optimizer_states
from lightning_sagemaker._compat.trainer import bare_optimizer
from lightning_sagemaker._lightning import MisconfigurationException
from lightning_sagemaker.checkpoint.background import BackgroundSave
from lightning_sagemaker.checkpoint.host_memory import SUFFIX
from lightning_sagemaker.checkpoint.rank_state import read_rank
from lightning_sagemaker.checkpoint.s3 import S3CheckpointIO
from lightning_sagemaker.checkpoint.sharded_entries import by_name, pop_sharded_entries
from lightning_sagemaker.collectives.agreement import from_first

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, LightningModule, PathLike, StateDict

_PATIENCE = 60.0
"""Seconds to wait for a checkpoint in progress when the Trainer ends, also after an error."""


class AsyncCheckpointing:
    """Mixin before :class:`~lightning_sagemaker.strategies.sharded.SMPShardedStrategy`'s base.

    Args:
        async_checkpoint: Whether checkpoints of a fit are copied in memory and written from there asynchronously, by shards
            of each process. A failure is raised on all processes at the next checkpoint, or at the end of the fit. Implies
            ``save_distributed_checkpoint``.
        save_distributed_checkpoint: Whether each process writes its shard into a folder, else rank zero writes one file.
        **kwargs: Arguments of the strategy.

    Raises:
        MisconfigurationException: If a single file is requested for asynchronous checkpoints.

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
                "async_checkpoint=True was set with save_distributed_checkpoint=False, but asynchronous checkpoints "
                "are sharded folders. HINT: leave one out; `lightning-sagemaker convert` merges one into a file."
            )
        in_parts = async_checkpoint or bool(save_distributed_checkpoint)
        # LightningCLI follows calls of this form only.
        super().__init__(*args, save_distributed_checkpoint=in_parts, **kwargs)  # type: ignore[call-arg]
        self.async_checkpoint = async_checkpoint
        self._in_own_parts = async_checkpoint
        self._background: BackgroundSave | None = None
        self._own_names: list[str] = []
        """Names in the module's ``state_dict()``, if a checkpoint has the same ones: not under ``torch.compile``."""

    @property
    def background_seconds(self) -> float:
        """Seconds that the last checkpoint took until it was complete."""
        return self._background.seconds if self._background is not None else 0.0

    @property
    def update_wait_seconds(self) -> float:
        """Seconds that the update after the start of the last checkpoint waited for copies of the optimizer states."""
        return self._background.deferred.waited if self._background is not None else 0.0

    @contextmanager
    def own_parts(self) -> Iterator[None]:
        """Context in which a checkpoint refers to this process's weights and optimizer states without copying them."""
        before, self._in_own_parts = self._in_own_parts, True
        try:
            yield
        finally:
            self._in_own_parts = before

    def lightning_module_state_dict(self) -> StateDict:
        """The weights of this process; not copied if the checkpoint copies them anyway."""
        if not self._in_own_parts:
            found: StateDict = super().lightning_module_state_dict()  # type: ignore[misc]
            return found
        assert self.model is not None
        own = dict(self.model.state_dict())
        if list(own) != self._own_names:  # otherwise reused: torch's traversal takes longer than the copies
            found = dict(get_model_state_dict(self.model, options=StateDictOptions()))
            self._own_names = list(own) if list(own) == list(found) else []
            return found
        return own

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer states of this process; not copied if the checkpoint copies them anyway."""
        with exact_optimizer_states():
            if not self._in_own_parts:
                found: dict[str, Any] = super().optimizer_state(optimizer)  # type: ignore[misc]
                return found
            assert self.model is not None
            return dict(get_optimizer_state_dict(self.model, bare_optimizer(optimizer), options=StateDictOptions()))

    def save_checkpoint(self, checkpoint: Checkpoint, filepath: PathLike, storage_options: object = None) -> None:
        """Start writing a checkpoint; called on all processes.

        Raises:
            RuntimeError: On all processes, if the last one failed.

        """
        if not self.async_checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)  # type: ignore[misc]
            return
        if self._background is None:
            self._background = BackgroundSave(self.global_rank, self.world_size, lambda: self.remote_checkpoints)
        rest = dict(checkpoint)
        parts = pop_sharded_entries(rest)
        deferred = {name: found for name, found in by_name(self.optimizers).items() if isinstance(found, Optimizer)}
        self._background.begin(parts, rest, str(filepath), deferred)
        if self.lightning_module.trainer.state.finished:  # there is no training to overlap with any more
            self.finish_saving()

    def barrier(self, name: str | None = None) -> None:
        """Wait for all processes; not while a checkpoint is being written, as none can rely on it yet."""
        if not (self.async_checkpoint and name == "Trainer.save_checkpoint"):
            super().barrier(name)  # type: ignore[misc]

    def finish_saving(self) -> None:
        """Wait for a checkpoint in progress.

        Raises:
            RuntimeError: On all processes, if one could not write its shard.

        """
        if self._background is not None:
            self._background.finish()

    def load_checkpoint(self, checkpoint_path: PathLike, weights_only: bool | None = None) -> Checkpoint:
        """Read a checkpoint; called on all processes."""
        self.finish_saving()
        with exact_optimizer_states():
            if Path(checkpoint_path).suffix == SUFFIX:
                assert self.model is not None
                return from_first(read_rank(Path(checkpoint_path), self.model, self.optimizers)) or {}
            found: Checkpoint = super().load_checkpoint(checkpoint_path, weights_only)  # type: ignore[misc]
            return found

    def remove_checkpoint(self, filepath: PathLike) -> None:
        """Remove a checkpoint, once the checkpoint that replaces it is complete."""
        if self._background is not None and self._background.is_under_way:
            self._background.after(lambda: self._remove(filepath))
        else:
            self._remove(filepath)

    def _remove(self, filepath: PathLike) -> None:
        super().remove_checkpoint(filepath)  # type: ignore[misc]

    def on_train_end(self) -> None:
        """Called when a fit ends without an error."""
        super().on_train_end()  # type: ignore[misc]
        self.finish_saving()

    def teardown(self) -> None:
        """Called when the Trainer ends, also after an error."""
        if self._background is not None:
            self._background.give_up(_PATIENCE)
        super().teardown()  # type: ignore[misc]
