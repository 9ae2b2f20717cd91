# SPDX-License-Identifier: Apache-2.0
"""A script that trains, tests, trains on, and trains with another Trainer.

Its arguments: folder, strategy, and, if it resumes, from where.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import RichProgressBar
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from lightning_sagemaker import AutoResume

FOLDER, STRATEGY, RESUMES = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
RANK = os.environ.get("RANK", "0")


def note(stage: str, step: int) -> None:
    with (FOLDER / f"rank-{RANK}.jsonl").open("a") as file:
        file.write(json.dumps([stage, step, os.getpid()]) + "\n")


class Module(LightningModule):
    """A linear model."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.accuracy, self.stage = torch.nn.Linear(8, 2), MulticlassAccuracy(2), "first"

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        time.sleep(0.02)
        note(self.stage, self.global_step)
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy(self.net(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Writes(Callback):
    """Notes whether it is the one that writes, which is a rank's own affair."""

    def setup(self, trainer: Trainer, module: Any, stage: str) -> None:
        self.writes = trainer.is_global_zero
        self.found = [self.writes]

    def on_train_end(self, trainer: Trainer, module: Any) -> None:
        assert self.found == [self.writes]


def data(size: int) -> TensorDataset:
    x = torch.randn(size, 8)
    return TensorDataset(x, (x.sum(1) > 0).long())


def trainer() -> Trainer:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary"), False)
    more = {"default_root_dir": FOLDER, "callbacks": [RichProgressBar(), Writes(), *map(AutoResume, RESUMES)]}
    return Trainer(strategy=STRATEGY, accelerator="cpu", devices=2, max_epochs=2, **more, **quiet)


def main() -> None:
    """Three fits, each with a test of 100 samples: as many on each rank."""
    seed_everything(1)
    module, training, test = Module(), DataLoader(data(400), 10, shuffle=True), DataLoader(data(100), 5)
    first = trainer()
    found = []
    first.fit(module, training)
    found += first.test(module, test, verbose=False)
    module.stage, first.fit_loop.max_epochs = "second", 3
    first.fit(module, training)
    found += first.test(module, test, verbose=False)
    module.stage, third = "third", trainer()
    third.fit(module, training)
    found += third.test(module, test, verbose=False)
    if third.is_global_zero:
        weights = {name: tensor.tolist() for name, tensor in module.state_dict().items()}
        (FOLDER / "found.json").write_text(json.dumps([found, weights]))


main()
