# SPDX-License-Identifier: Apache-2.0
"""Means over the samples of all processes."""

from __future__ import annotations

import torch
import torchmetrics
from torch import Tensor


class LossAndAccuracy(torchmetrics.Metric):
    """Mean loss and accuracy from sums in float64, so that the result does not depend on the number of processes."""

    full_state_update = False
    loss: Tensor
    correct: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._scored = True
        for name in ("loss", "correct", "count"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, losses: Tensor, correct: Tensor | None, count: Tensor | int | None = None) -> None:
        """Add a batch.

        Args:
            losses: Loss of each sample; 0 for samples that do not count.
            correct: Whether each prediction is right; ``None`` in regression.
            count: Number of samples that count; all by default.

        """
        self.loss += losses.detach().sum(dtype=torch.float64)
        self.count += losses.numel() if count is None else count
        self._scored = correct is not None
        if correct is not None:
            self.correct += correct.sum()

    def compute(self) -> dict[str, Tensor]:
        """``loss`` and, except in regression, ``accuracy``; NaN without any sample."""
        loss = {"loss": self.loss / self.count}
        return loss | {"accuracy": self.correct / self.count} if self._scored else loss
