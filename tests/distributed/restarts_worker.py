# SPDX-License-Identifier: Apache-2.0
"""Training whose second rank is killed in the first two attempts of a launch.

``restarts_worker.py STRATEGY OUT_DIR`` writes a line for each step of the first rank to ``OUT_DIR/steps``: attempt and step.
"""

import os
import signal
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume, SpotInterruption

warnings.filterwarnings("ignore")
STRATEGY, OUT = sys.argv[1], Path(sys.argv[2])
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
STEPS, KILLED_AT = 12, {0: 4, 1: 8}


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


class Killed(Callback):
    """A machine that fails."""

    def on_train_batch_start(self, trainer, *_) -> None:
        if RANK == 1 and trainer.global_step == KILLED_AT.get(ATTEMPT):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, trainer, *_) -> None:
        if RANK == 0:
            with (OUT / "steps").open("a") as file:
                file.write(f"{ATTEMPT} {trainer.global_step}\n")


def main() -> None:
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    if ATTEMPT and RANK == 1:
        time.sleep(1)  # whoever comes first finds what is left of the one that was killed
    Trainer(
        strategy=STRATEGY,
        accelerator="cpu",
        devices=2,
        max_steps=STEPS,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[AutoResume(OUT), SpotInterruption(OUT, save_every=timedelta(seconds=0)), Killed()],
    ).fit(Model(), DataLoader(torch.ones(64, 4), 4))


if __name__ == "__main__":
    main()
