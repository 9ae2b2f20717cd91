# SPDX-License-Identifier: Apache-2.0
"""A training that logs to MLflow and is struck: ``tracked_worker.py FOLDER ADDRESS STEPS EVENT SECONDS``."""

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

STEP_SECONDS = 0.01


class Module(pl.LightningModule):
    def __init__(self, strike):
        super().__init__()
        self.layer, self.strike = torch.nn.Linear(4, 1), strike
        self.save_hyperparameters({"rate": 0.1})

    def training_step(self, batch, index):
        loss = torch.nn.functional.dropout(self.layer(batch[0]), 0.3).pow(2).mean()
        self.log("loss", loss)
        time.sleep(STEP_SECONDS)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.layer(batch[0]).pow(2).mean())

    def on_train_start(self):
        self.strike()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def strike(event, seconds, logger):
    """End this process, its sender or both, after so many seconds of training."""

    def now():
        sender = logger._sender
        if "sender" in event and sender is not None:
            sender.kill()
        if "SIGTERM" in event:
            os.kill(os.getpid(), signal.SIGTERM)
        elif "SIGKILL" in event:
            os.kill(os.getpid(), signal.SIGKILL)

    if event != "none":
        timer = threading.Timer(seconds, now)
        timer.daemon = True
        timer.start()


def main():
    sys.path.append(os.environ["PYTHONPATH"])  # a forked process has the path of the one that forked it
    from lightning_sagemaker import AutoResume, MLflowLogger, SpotInterruption

    folder, address, steps, event, seconds = Path(sys.argv[1]), *sys.argv[2:]
    logger = MLflowLogger(address, experiment=folder.name, save_dir=folder / "journal", resume=True)
    pl.seed_everything(0)
    data = TensorDataset(torch.randn(160, 4))
    trainer = pl.Trainer(
        max_steps=int(steps),
        max_epochs=-1,
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=1,
        val_check_interval=20,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[
            AutoResume(folder / "checkpoints"),
            SpotInterruption(folder / "checkpoints", save_every=timedelta(seconds=0.3)),
        ],
    )
    if event == "error":

        def fail():
            raise RuntimeError("on purpose")

        struck = fail
    else:

        def struck():
            strike(event, float(seconds), logger)

    trainer.fit(Module(struck), DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=40))
    print("seconds", time.monotonic())


if __name__ == "__main__":
    main()
