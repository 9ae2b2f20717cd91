# SPDX-License-Identifier: Apache-2.0
"""Optimizers and schedules by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn
from transformers import SchedulerType, get_scheduler

from lightning_sagemaker.errors import suggestion

OPTIMIZERS = ("adamw", "lamb")


@dataclass(frozen=True)
class Optimization:
    """Settings of the optimizer and the learning-rate schedule.

    Args:
        optimizer: ``adamw`` (fused), or ``lamb`` for very large batches (You et al., 2019, version 3: without bias
            correction, decay inside the trust ratio).
        learning_rate: Peak learning rate, after the warm-up.
        end_learning_rate: Last learning rate of the ``polynomial`` schedule.
        power: Exponent of the ``polynomial`` schedule.
        schedule: ``linear``, ``polynomial``, ``cosine``, ``constant_with_warmup`` or another of transformers.
        warmup_steps: Optimizer steps of linear increase; below 1: as a share of all steps.
        weight_decay: Weight decay of matrices; biases and LayerNorm have none.
        betas: Coefficients of the optimizer's moving averages.
        epsilon: Added to the optimizer's denominator.

    Raises:
        MisconfigurationException: If a name is unknown or a number out of range.

    """

    optimizer: str = "adamw"
    learning_rate: float = 1e-4
    end_learning_rate: float = 0.0
    power: float = 1.0
    schedule: str = "linear"
    warmup_steps: float = 0
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise MisconfigurationException(
                f"model.optimizer={self.optimizer!r} was set. HINT: choose one of {', '.join(OPTIMIZERS)}."
            )
        known = [str(one.value) for one in SchedulerType]
        if self.schedule not in known:
            raise MisconfigurationException(
                f"model.schedule={self.schedule!r} was set. HINT: {suggestion(self.schedule, known)}"
            )
        if self.learning_rate <= 0 or self.warmup_steps < 0 or self.weight_decay < 0:
            raise MisconfigurationException(
                f"model.learning_rate={self.learning_rate}, model.warmup_steps={self.warmup_steps},"
                f" model.weight_decay={self.weight_decay} were set."
                " HINT: the learning rate must be positive, the others must not be negative."
            )

    def build(self, module: nn.Module, num_steps: int, fused: bool = True) -> OptimizerLRScheduler:
        """The optimizer of ``module`` with a schedule over ``num_steps``, as Lightning takes them.

        Args:
            module: Module to train.
            num_steps: Optimizer steps of the run.
            fused: Whether AdamW may be torch's fused one, which cannot unscale gradients for clipping (16-mixed).

        """
        optimizer = self._optimizer(parameter_groups(module, self.weight_decay), fused)
        warmup = self.warmup_steps if self.warmup_steps >= 1 else self.warmup_steps * num_steps
        polynomial = {"lr_end": self.end_learning_rate, "power": self.power}
        schedule = get_scheduler(
            self.schedule,
            optimizer,
            num_warmup_steps=round(warmup),
            num_training_steps=num_steps,
            scheduler_specific_kwargs=polynomial if self.schedule == "polynomial" else None,
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _optimizer(self, groups: list[dict[str, Any]], fused: bool) -> torch.optim.Optimizer:
        betas = (self.betas[0], self.betas[1])
        if self.optimizer == "adamw":
            return torch.optim.AdamW(groups, lr=self.learning_rate, betas=betas, eps=self.epsilon, fused=fused)
        from pytorch_optimizer import Lamb  # a second to import

        # As in the paper: weight decay inside the trust ratio, and no correction of the bias of the moving averages, of
        # which the library would otherwise correct the first.
        options = {"weight_decouple": False, "adam_debias": True}
        lamb = Lamb(groups, lr=self.learning_rate, betas=betas, eps=self.epsilon, **options)
        lamb.clamp = float("inf")  # the paper does not bound the norm of the weights
        return lamb


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters with and without weight decay: biases and LayerNorm (all vectors) have none."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
