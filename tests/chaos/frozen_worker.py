# SPDX-License-Identifier: Apache-2.0
"""Two ranks, of which one (``FREEZE``) freezes in the middle: ``frozen_worker.py PATIENCE``."""

import os
import signal
import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from lightning_sagemaker import Heartbeat

STEPS = 40


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        if batch_idx == 5 and os.environ.get("FREEZE") == str(self.global_rank):
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.net(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    trainer = Trainer(
        strategy="smddp",
        accelerator="cpu",
        devices=2,
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Heartbeat(every=0.3, patience=float(sys.argv[1]))],
    )
    trainer.fit(Model(), DataLoader(torch.ones(2 * STEPS, 2)))
    print(f"rank {trainer.global_rank} has made {trainer.global_step} steps")


if __name__ == "__main__":
    main()
