# SPDX-License-Identifier: Apache-2.0
"""Moves schedulers of a run that is resumed with another global batch size to the same fraction of the samples."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from lightning_sagemaker._types import Trainer


_ABSOLUTE = (LambdaLR, OneCycleLR)
"""Schedulers whose learning rates depend on the step number only."""


def stretch_schedules(trainer: Trainer, factor: float) -> str:
    """Move schedulers that count steps to the step that corresponds to the same number of samples.

    A run that ends by epochs makes ``factor`` times as many steps with the new global batch, and so does a scheduler
    that uses ``estimated_stepping_batches``. One limited by ``max_steps`` is not changed.

    Args:
        trainer: Trainer whose optimizers and schedulers have been loaded.
        factor: Samples per step of the earlier run, divided by those of this run.

    Returns:
        A log message about the changes; empty if there are none.

    """
    counting = [config.scheduler for config in trainer.lr_scheduler_configs if config.interval == "step"]
    counting = [
        scheduler for scheduler in counting if hasattr(scheduler, "last_epoch") and hasattr(scheduler, "base_lrs")
    ]
    if factor == 1 or trainer.max_steps != -1 or not counting or not trainer.lightning_module.automatic_optimization:
        return ""
    fixed = [type(scheduler).__name__ for scheduler in counting if not _move(scheduler, factor)]
    if fixed:
        return f"{', '.join(fixed)} keeps counting steps, of which there are {factor:g} times as many now."
    return f"Schedulers resume at the same fraction of the samples: {counting[0].last_epoch} steps of this size."


def _move(scheduler: LRScheduler, factor: float) -> bool:
    before = scheduler.last_epoch
    scheduler.last_epoch = round(before * factor)
    if hasattr(scheduler, "_get_closed_form_lr"):
        rates = scheduler._get_closed_form_lr()
    elif isinstance(scheduler, _ABSOLUTE):
        with warnings.catch_warnings():  # of calls that are not from the training loop
            warnings.simplefilter("ignore")
            rates = scheduler.get_lr()
    else:
        scheduler.last_epoch = before
        return False
    scheduler._step_count = scheduler.last_epoch + 1
    scheduler._last_lr = [float(rate) for rate in rates]
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return True
