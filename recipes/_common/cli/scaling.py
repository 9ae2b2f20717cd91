# SPDX-License-Identifier: Apache-2.0
"""Training on the same number of samples with any global batch."""

from __future__ import annotations

import logging

from lightning.pytorch import Callback, LightningModule, Trainer

_log = logging.getLogger(__name__)


class TotalExamples(Callback):
    """Sets the number of optimizer steps to what so many samples make.

    2 hosts with a global batch of 256 and 4 with 512 then train 2500 and 1250 steps on 640 000 samples.

    Args:
        total: Samples.

    """

    def __init__(self, total: int) -> None:
        self._total = total

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before the schedule is made of it."""
        if stage != "fit":
            return
        batch = trainer.datamodule.global_batch_size  # type: ignore[attr-defined]
        steps = max(1, round(self._total / batch))
        trainer.fit_loop.epoch_loop.max_steps = steps
        trainer.fit_loop.max_epochs = -1
        if trainer.is_global_zero:
            _log.info("%d steps: %d samples in batches of %d", steps, self._total, batch)
