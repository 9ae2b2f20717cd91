# SPDX-License-Identifier: Apache-2.0
"""A Trainer after an exception."""

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins import MixedPrecision

from lightning_sagemaker._compat.in_job import forget_interruption


class FailsOnce(BoringModel):
    """In the hook after its gradients were unscaled."""

    def on_before_optimizer_step(self, optimizer):
        raise RuntimeError("a rank was lost")


def test_gradients_of_a_step_that_is_repeated_are_unscaled_again(tmp_path):
    scaler = torch.amp.GradScaler("cpu")
    trainer = Trainer(
        accelerator="cpu", max_steps=1, plugins=MixedPrecision("16-mixed", "cpu", scaler), logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="a rank was lost"):
        trainer.fit(FailsOnce())
    (optimizer,) = trainer.optimizers
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    forget_interruption(trainer)
    scaler.unscale_(optimizer)
