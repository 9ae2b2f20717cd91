# SPDX-License-Identifier: Apache-2.0
"""A training whose updates depend on a scheduler that only the module knows; rank 1 kills itself once: FOLDER."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader

import lightning_sagemaker  # noqa: F401  (registers the strategies)

FOLDER = Path(sys.argv[1])


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        self.all_gather(batch)  # waits for the replacement, which so joins in the midst of training
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        self.schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))]
        return optimizer

    def on_train_batch_end(self, *_: object) -> None:
        self.schedules[0].step()
        died = FOLDER / "died"
        if self.global_step == 4 and self.global_rank == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)

    def on_train_end(self) -> None:
        weights = self.net.weight.flatten().tolist()
        (FOLDER / f"rank-{self.global_rank}.json").write_text(json.dumps([self.global_step, weights]))


if __name__ == "__main__":
    seed_everything(1, verbose=False)
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False
    )
    data = DataLoader(torch.randn(48, 4, generator=torch.Generator().manual_seed(0)), 2)  # type: ignore[arg-type]
    Trainer(strategy="sagemaker", accelerator="cpu", devices=2, max_epochs=1, **quiet).fit(Module(), data)
