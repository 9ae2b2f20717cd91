# SPDX-License-Identifier: Apache-2.0
"""A script whose module and callback keep what no ``state_dict`` has; its arguments: folder, strategy, losses.

A loss is ``MOMENT:STEP:RANK``, the moment ``start``, ``sanity``, ``fit``, ``save`` or ``validation``: there it kills
itself, once.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset

import lightning_sagemaker  # noqa: F401

FOLDER, STRATEGY, LOSSES = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]


class Rows(Dataset[Any]):
    """Classes of random vectors, which depend on the epoch in which the loader was requested."""

    def __init__(self, size: int, epoch: int = 0) -> None:
        draw = torch.Generator().manual_seed(epoch)
        self.vectors = torch.randn(size, 8, generator=draw)

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, index: int) -> Any:
        return self.vectors[index], int(self.vectors[index].sum() > 0)


class Data(LightningDataModule):
    """Other samples in each epoch."""

    def train_dataloader(self) -> Any:
        return DataLoader(Rows(64, self.trainer.current_epoch), 4, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(Rows(32), 4)


class Meter:
    """As scripts have one for a mean."""

    def __init__(self) -> None:
        self.count = 0

    def update(self) -> None:
        self.count += 1


class Module(LightningModule):
    """Its loss depends on a counter and on a teacher, which follows it in a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(8, 2)
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)
        self.steps, self.outputs, self.matrix, self.kinds = 0, [], np.zeros((2, 2)), {"steps": 0}
        self.meters = {"steps": Meter()}
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        found = self.net(batch[0])
        self.steps += 1
        self.calls += 1
        self.kinds["steps"] += 1
        self.meters["steps"].update()
        loss = torch.nn.functional.cross_entropy(found, batch[1])
        return loss + min(1.0, self.steps / 20) * (found - self.teacher(batch[0])).square().mean()

    def on_train_batch_end(self, *_: Any) -> None:
        with torch.no_grad():
            for mean, value in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                mean.mul_(0.9).add_(value, alpha=0.1)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        found = self.net(batch[0])
        self.outputs.append(torch.nn.functional.cross_entropy(found, batch[1]))
        np.add.at(self.matrix, (batch[1].numpy(), found.argmax(1).numpy()), 1)

    def on_validation_epoch_end(self) -> None:
        self.log("loss", torch.stack(self.outputs).mean(), sync_dist=True)
        self.log("batches", float(len(self.outputs)), sync_dist=True, reduce_fx="sum")
        self.log("right", float(np.trace(self.matrix)), sync_dist=True, reduce_fx="sum")
        self.outputs.clear()
        self.matrix[:] = 0

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Records(Callback):
    """Rows of what all ranks have after each step."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        teacher = module.teacher.weight.double().sum().item()
        steps = module.steps, module.kinds["steps"], module.meters["steps"].count, int(module.calls)
        self.rows.append([trainer.global_step, *steps, teacher])

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        if not trainer.sanity_checking:
            self.rows.append({name: float(value) for name, value in trainer.callback_metrics.items()})


class Dies(Callback):
    """Where it is told to."""

    def _die(self, trainer: Trainer, moment: str) -> None:
        name = f"{moment}:{trainer.global_step}:{trainer.global_rank}"
        if name in LOSSES and not (FOLDER / name).exists():
            (FOLDER / name).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self._die(trainer, "fit")

    def on_validation_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int, *_: Any) -> None:
        if batch_idx == 2 or trainer.sanity_checking:
            self._die(trainer, "sanity" if trainer.sanity_checking else "validation")

    def on_fit_start(self, trainer: Trainer, *_: Any) -> None:
        self._die(trainer, "start")


class Saves(ModelCheckpoint):
    """Each rank is in it, after the module's hook of a batch's end."""

    def _save_topk_checkpoint(self, trainer: Trainer, *arguments: Any) -> None:
        dies._die(trainer, "save")
        super()._save_topk_checkpoint(trainer, *arguments)


seed_everything(1)
dies = Dies()
saves = Saves(FOLDER / "saved", every_n_train_steps=4, save_top_k=-1)
records, module = Records(), Module()
trainer = Trainer(
    strategy=STRATEGY, accelerator="cpu", devices=2, max_epochs=5, reload_dataloaders_every_n_epochs=2, logger=False,
    callbacks=[records, dies, saves], default_root_dir=FOLDER, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(module, datamodule=Data())
weights = {name: value.double().sum().item() for name, value in module.state_dict().items()}
(FOLDER / f"rank-{trainer.global_rank}.json").write_text(json.dumps({"rows": records.rows, "weights": weights}))
