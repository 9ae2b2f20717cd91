# SPDX-License-Identifier: Apache-2.0
"""Callbacks that the strategies add to a Trainer that has none of their class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_sagemaker._compat.trainer import callback_of, callbacks_of, ensure_callback
from lightning_sagemaker.callbacks.auto_resume import AutoResume
from lightning_sagemaker.callbacks.interruption import SpotInterruption
from lightning_sagemaker.callbacks.memory_checkpoint import MemoryCheckpoint
from lightning_sagemaker.recovery.together import RestartsTogether

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer


def add_restart_callbacks(trainer: Trainer, *, in_memory: bool) -> None:
    """Add callbacks that continue after a restart of all ranks.

    Args:
        trainer: The Trainer.
        in_memory: Whether ranks resume from copies in memory, as their strategy shards parameters.

    """
    ensure_callback(trainer, AutoResume(search=False))
    if in_memory:
        ensure_callback(trainer, MemoryCheckpoint())
    if callback_of(trainer, RestartsTogether) is None:
        callbacks_of(trainer).insert(0, RestartsTogether())


def add_spot_interruption(trainer: Trainer) -> None:
    """Add a callback that stops all ranks together."""
    if trainer.checkpoint_callbacks:
        ensure_callback(trainer, SpotInterruption())
    else:  # with enable_checkpointing=False only progress that an interruption would lose is saved
        ensure_callback(trainer, SpotInterruption(save_every=None))
