# SPDX-License-Identifier: Apache-2.0
"""Attributes that a Trainer has and does not declare, as its connectors set them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lightning_sagemaker._types import (
        Callback,
        Checkpoint,
        LightningDataModule,
        ProcessedTracker,
        ReadyCompletedTracker,
        StateDict,
        Trainer,
    )


C = TypeVar("C")


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """The Trainer's own list of callbacks, which may be extended."""
    found: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return found


def callback_of(trainer: Trainer, kind: type[C]) -> C | None:
    """The Trainer's first callback of a class; None if it has none."""
    return next((callback for callback in callbacks_of(trainer) if isinstance(callback, kind)), None)


def ensure_callback(trainer: Trainer, default: C) -> C:
    """The Trainer's callback of the class of ``default``, which is appended if there is none."""
    found = callback_of(trainer, type(default))
    if found is None:
        callbacks_of(trainer).append(cast("Callback", default))
    return default if found is None else found


def is_fast_dev_run(trainer: Trainer) -> bool:
    """Whether a few batches only try the code (``fast_dev_run``): Lightning saves and logs nothing then."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]


def datamodule_of(trainer: Trainer) -> LightningDataModule | None:
    """The data module of the current or last run."""
    found: LightningDataModule | None = trainer.datamodule  # type: ignore[attr-defined]
    return found


def full_checkpoint(trainer: Trainer) -> Checkpoint:
    """The complete checkpoint that the Trainer would save now. Collective."""
    found: Checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    return found


def loaded_checkpoint(trainer: Trainer) -> Checkpoint:
    """The checkpoint that is being loaded; empty if there is none."""
    return trainer._checkpoint_connector._loaded_checkpoint or {}


def loaded_callback_states(trainer: Trainer) -> dict[str, StateDict]:
    """States of callbacks, by their keys, in the checkpoint that is being loaded."""
    return cast("dict[str, StateDict]", loaded_checkpoint(trainer).get("callbacks", {}))


def bare_optimizer(optimizer: Optimizer) -> Optimizer:
    """An optimizer without Lightning's wrapper."""
    found: Optimizer = getattr(optimizer, "_optimizer", optimizer)
    return found


def log_interval(trainer: Trainer) -> int:
    """Number of steps between logged steps, at least 1."""
    return max(1, int(trainer.log_every_n_steps))  # type: ignore[attr-defined]


def counts(tracker: ReadyCompletedTracker) -> ProcessedTracker:
    """The counters of a tracker, with the type that it has; Lightning declares a base class.

    Args:
        tracker: ``current`` or ``total`` of ``epoch_progress`` or ``batch_progress`` of a training loop.

    """
    return cast("ProcessedTracker", tracker)


def is_tuning(trainer: Trainer) -> bool:
    """Whether the fit is a ``Tuner``'s, which ends once its callback has tried values."""
    return any(getattr(callback, "_early_exit", False) for callback in callbacks_of(trainer))
