# SPDX-License-Identifier: Apache-2.0
"""A script whose steps call collectives; its arguments: folder, strategy, losses.

A loss is ``STEP:RANK:PLACE``: there the rank kills itself, once. Places are the start of a batch, and hooks in which the
others wait for it: ``gradients`` and ``end``. The first two epochs only log means and maxima over the ranks, and keep
metrics; the third and the fourth gather what the model returned, in the hook after a validation, and in steps and all hooks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader
from torchmetrics import CatMetric, MeanMetric

import lightning_sagemaker  # noqa: F401

FOLDER, STRATEGY, LOSSES = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
GATHERS, LAST = 2, 3


class Module(LightningModule):
    """Its loss depends on all ranks' batches in the fourth epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(8, 2)
        self.gathered: list[torch.Tensor] = []
        self.metric, self.kept = MeanMetric(), CatMetric()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        found = self.net(batch)
        loss = (found - batch[:, :2]).square().mean()
        self.log("mean", loss, sync_dist=True)
        self.log("largest", loss, sync_dist=True, reduce_fx="max")
        if self.current_epoch == LAST:
            loss = loss + (found.mean() - self.all_gather(found.detach()).mean()).square()
        return loss

    def on_after_backward(self) -> None:
        self.log("gradient", self.net.weight.grad.norm(), sync_dist=True)  # type: ignore[union-attr]

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self._meet("gradients")

    def on_train_batch_end(self, *_: Any) -> None:
        self._meet("end")

    def _meet(self, place: str) -> None:
        if self.current_epoch == LAST:
            die_if_told(self.trainer, place)
            self.log(place, self.all_gather(torch.tensor(1.0)).sum())  # type: ignore[union-attr]

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        found: torch.Tensor = self.net(batch)
        self.log("validation", found.square().mean(), sync_dist=True)
        self.metric.update(found)
        self.kept.update(found)
        return found

    def on_validation_batch_end(self, outputs: Any, *_: Any) -> None:
        self.gathered.append(self.all_gather(outputs).mean() if self.current_epoch == LAST else outputs.mean())

    def on_validation_epoch_end(self) -> None:
        mean = torch.stack(self.gathered).mean()
        self.log("gathered", self.all_gather(mean).mean() if self.current_epoch == GATHERS else mean, sync_dist=True)  # type: ignore[union-attr]
        self.log("metric", self.metric)
        self.log("kept", self.kept.compute().mean())
        self.gathered.clear()
        self.kept.reset()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def die_if_told(trainer: Trainer, place: str) -> None:
    """A loss."""
    name = f"{trainer.global_step}:{trainer.strategy.job.global_rank if STRATEGY != 'ddp' else 0}:{place}"
    if name in LOSSES and not (FOLDER / name).exists():
        (FOLDER / name).touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Records(Callback):
    """What is logged after each step, and after each validation."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.current_epoch == 1 and trainer.world_size < 3:  # the next loss is of another rank
            time.sleep(1.0)
        die_if_told(trainer, "start")

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.rows.append(
            [trainer.global_step, *(trainer.callback_metrics[name].item() for name in ("mean", "largest"))]
        )

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        found = trainer.callback_metrics
        if not trainer.sanity_checking:
            names = ("validation", "gathered", "metric", "kept")
            self.rows.append([trainer.global_step, *(found[name].item() for name in names)])


if __name__ == "__main__":
    seed_everything(1)
    records, module = Records(), Module()
    trainer = Trainer(
        strategy=STRATEGY, accelerator="cpu", devices=3, max_epochs=4, logger=CSVLogger(FOLDER, flush_logs_every_n_steps=1),
        log_every_n_steps=1, enable_checkpointing=False,
        callbacks=[records], default_root_dir=FOLDER, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    rows = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
    trainer.fit(module, DataLoader(rows, 4, shuffle=True), DataLoader(rows[:24], 4))
    weights = {name: value.tolist() for name, value in module.state_dict().items()}
    (FOLDER / f"rank-{trainer.global_rank}.json").write_text(json.dumps({"rows": records.rows, "weights": weights}))
