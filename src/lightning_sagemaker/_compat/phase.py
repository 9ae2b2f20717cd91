# SPDX-License-Identifier: Apache-2.0
"""The point in Lightning's loops at which a checkpoint is saved, from which they resume.

Lightning restarts loops by guessing where a checkpoint was saved. Some steps are then run twice, others never:
the scheduler that follows a validation, a validation, the end of an epoch. Here a checkpoint records its :class:`Phase`,
and the loops continue as usual, through the same methods that they call themselves.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.trainer import counts

if TYPE_CHECKING:
    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import Trainer


class Phase(str, Enum):
    """The point in a fit at which a checkpoint was saved."""

    STEP = "step"
    """After a batch and everything that follows it."""
    BATCH_END = "batch_end"
    """In the hooks of a batch's end: a validation may be due."""
    VALIDATING = "validating"
    """In a validation, which is repeated."""
    VALIDATED = "validated"
    """In the hooks of a validation's end."""
    EPOCH_END = "epoch_end"
    """In the hooks of an epoch's end."""
    BETWEEN = "between"
    """Before an epoch, or after the last one."""
    MID_BATCH = "amid"
    """Within a batch, as after an exception: the batch is repeated, with other random numbers."""


def phase_of(trainer: Trainer, events: LoopEvents) -> Phase:
    """The current phase of a fit."""
    epoch, batch = (
        counts(trainer.fit_loop.epoch_progress.current),
        counts(trainer.fit_loop.epoch_loop.batch_progress.current),
    )
    if epoch.processed == epoch.ready:
        return Phase.EPOCH_END if epoch.completed < epoch.processed else Phase.BETWEEN
    if epoch.started < epoch.ready:
        return Phase.BETWEEN
    if events.is_ending:
        return Phase.VALIDATED if events.validated else Phase.VALIDATING
    if batch.completed == batch.processed == batch.ready:
        return Phase.STEP
    return Phase.BATCH_END if batch.processed == batch.ready else Phase.MID_BATCH
