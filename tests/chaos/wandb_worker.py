# SPDX-License-Identifier: Apache-2.0
"""A training that logs for W&B and is struck at a step: ``wandb_worker.py FOLDER SIGNAL STEP``."""

import os
import signal
import sys
from datetime import timedelta

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_sagemaker import AutoResume, OfflineWandbLogger, SpotInterruption

STEPS = 40


class Module(pl.LightningModule):
    def __init__(self, name, step):
        super().__init__()
        self.layer, self.name, self.step = torch.nn.Linear(4, 1), name, step
        self.save_hyperparameters({"rate": 0.1})

    def training_step(self, batch, index):
        if self.global_step == self.step:
            os.kill(os.getpid(), signal.Signals[self.name])
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main(folder, name, step):
    pl.seed_everything(0)
    data = DataLoader(TensorDataset(torch.randn(4 * STEPS, 4)), 4)
    trainer = pl.Trainer(
        max_epochs=1,
        logger=OfflineWandbLogger("strikes", "one", f"{folder}/wandb"),
        log_every_n_steps=1,
        callbacks=[AutoResume(folder), SpotInterruption(folder, timedelta(seconds=0.05), overhead=1.0)],
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(name, int(step)), data)


if __name__ == "__main__":
    main(*sys.argv[1:])
