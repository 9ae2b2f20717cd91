# SPDX-License-Identifier: Apache-2.0
"""A recipe of your own: the data of sequence classification, with the focal loss.

The focal loss (Lin et al., 2017, equation 4, without class weights) is (1 - p)^gamma * -log(p), where p is the probability
of the right class: samples that are classified well count less.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_sagemaker.recipes._common.cli.arguments import Names
from lightning_sagemaker.recipes._common.cli.options import OWN_OPTIONS
from lightning_sagemaker.recipes._common.cli.recipe_cli import Recipe
from lightning_sagemaker.recipes.sequence_classification.data import ClassificationDataModule
from lightning_sagemaker.recipes.sequence_classification.module import SequenceClassifier
from lightning_sagemaker.recipes.sequence_classification.recipe import SHORT_NAMES


class FocalClassifier(SequenceClassifier):
    """Classifies texts, one label each, by the focal loss.

    Args:
        gamma: 0 is the cross-entropy; the paper's value is 2.
        **arguments: Those of ``SequenceClassifier``.

    """

    def __init__(self, gamma: float = 2.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.gamma = gamma

    def training_loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The mean over the samples, so that the gradients of all processes average to those of one."""
        logits = self(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]).float()
        labels = batch["labels"].long()
        log_p = torch.log_softmax(logits, dim=1).gather(1, labels[:, None])[:, 0]
        each = -((1 - log_p.exp()) ** self.gamma) * log_p
        self.train_metrics.update(each.detach(), logits.detach().argmax(dim=1) == labels)
        return each.mean()


RECIPE = Recipe(
    "focal-classification",
    Path(__file__).parent,
    FocalClassifier,
    ClassificationDataModule,
    Names(SHORT_NAMES | {"gamma": "model.gamma"}, own=OWN_OPTIONS),
)
