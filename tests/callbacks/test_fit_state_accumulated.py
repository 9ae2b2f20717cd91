# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that is saved amid accumulated gradients is that of the last step, in a run that was resumed too."""

from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume
from lightning_sagemaker.checkpoint.find import STATE


class Saves(Callback):
    """After each validation, whatever else has been saved in this step."""

    def on_validation_end(self, trainer, pl_module):
        trainer.save_checkpoint(Path(trainer.default_root_dir, "validated.ckpt"))


def fit(folder, steps, *callbacks, resumes=None):
    trainer = Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_steps=steps,
        accumulate_grad_batches=2,
        val_check_interval=7,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        callbacks=[AutoResume(search=False), *callbacks],
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(BoringModel(), DataLoader(RandomDataset(32, 28), batch_size=2), ckpt_path=resumes)
    return trainer


def test_the_first_validation_after_a_resume(tmp_path):
    fit(tmp_path, 3).save_checkpoint(tmp_path / "first.ckpt")
    fit(tmp_path, 4, Saves(), resumes=tmp_path / "first.ckpt")
    state = torch.load(tmp_path / "validated.ckpt", weights_only=True)[STATE]
    taken = [own["loaders"]["training"][0]["taken"] for own in state["ranks"]]
    assert [state["batches"], *taken] == [6, 6]  # the validation is after the seventh
