# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation: a checkpoint saved during it has the state of the last optimizer step, and no gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_sagemaker._compat.phase import Phase
from lightning_sagemaker._compat.trainer import callbacks_of, counts
from lightning_sagemaker._lightning import ModelCheckpoint, rank_zero_warn
from lightning_sagemaker.checkpoint.own_weights import is_hooked

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer


def saves_within(trainer: Trainer, steps_are_long: bool) -> bool:
    """Whether checkpoints may be saved during accumulation, so that the state of each step is kept until the next.

    Args:
        trainer: Which accumulates gradients, or not.
        steps_are_long: Whether a stop does not wait for the next step.

    """
    accumulated = trainer.accumulate_grad_batches
    if accumulated == 1 or not trainer.lightning_module.automatic_optimization:
        return False
    every = trainer.val_check_batch
    validates = trainer.enable_validation and isinstance(every, int) and every % accumulated != 0
    by_clock = any(getattr(callback, "_train_time_interval", None) for callback in trainer.checkpoint_callbacks)
    return bool(steps_are_long or validates or by_clock or saves_on_exception(trainer))


def saves_on_exception(trainer: Trainer) -> bool:
    """Whether a checkpoint may be saved after an exception."""
    stock = trainer.checkpoint_callbacks
    asked = (not isinstance(one, ModelCheckpoint) or getattr(one, "save_on_exception", False) for one in stock)
    return any(asked) or any(is_hooked(one, ("on_exception",)) for one in callbacks_of(trainer))


def has_accumulated(trainer: Trainer, phase: Phase) -> bool:
    """Whether there are gradients of batches since the last optimizer step."""
    loop = trainer.fit_loop.epoch_loop
    if phase is Phase.MID_BATCH:  # Lightning counts the batch in which it is
        return counts(loop.batch_progress.current).completed % trainer.accumulate_grad_batches != 0
    return bool(loop._should_accumulate())


def warn_of_lost_gradients() -> None:
    """A checkpoint is saved that has neither the gradients nor the state of the last step."""
    rank_zero_warn(
        "A checkpoint was saved in the middle of gradient accumulation: a run resumed from it lacks the gradients of the"
        " batches since the last step. HINT: save after steps, as every_n_train_steps does."
    )
