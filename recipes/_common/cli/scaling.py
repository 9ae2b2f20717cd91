# SPDX-License-Identifier: Apache-2.0
"""Training on the same number of samples with any global batch."""

from __future__ import annotations

import logging

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_sagemaker.recipes._common.data.data_module import data_of

_log = logging.getLogger(__name__)


class TotalExamples(Callback):
    """Sets the number of optimizer steps from a number of samples.

    On 640 000 samples, a global batch of 256 trains 2500 steps, and one of 512 trains 1250.

    Args:
        total: Number of samples to train on.

    """

    def __init__(self, total: int) -> None:
        self._total = total

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the number of steps before the learning-rate schedule is created."""
        if stage != "fit":
            return
        data = data_of(trainer)
        assert data is not None
        batch = data.global_batch_size
        steps = max(1, round(self._total / batch))
        trainer.fit_loop.epoch_loop.max_steps = steps
        trainer.fit_loop.max_epochs = -1
        if trainer.is_global_zero:
            _log.info("%d steps: %d samples in batches of %d", steps, self._total, batch)
