# SPDX-License-Identifier: Apache-2.0
"""Lightning's count of validation batches, over all validations: the step of rows that ``log(on_step=True)`` writes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.guard import require

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer

_WANTED = "_lightning_sagemaker_seen"
"""Attribute of the loop: the counts to continue from, once it has loaders."""


def seen_batches(trainer: Trainer) -> dict[int, int]:
    """Loader -> number of batches."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    require(loop, "_seen_batches_per_dataloader")
    return dict(vars(loop).get(_WANTED) or loop._seen_batches_per_dataloader)


def restore_seen_batches(trainer: Trainer, seen: dict[int, int]) -> None:
    """Continue from the result of :func:`seen_batches`; the loop resets the counts when it creates its loaders."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop._seen_batches_per_dataloader = defaultdict(int, seen)
    if loop._combined_loader is None:
        vars(loop)[_WANTED] = seen


def loaders_are_made(trainer: Trainer) -> None:
    """Apply the restored counts, after the validation loaders were created."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    wanted = vars(loop).pop(_WANTED, None)
    if wanted is not None:
        loop._seen_batches_per_dataloader = defaultdict(int, wanted)
