# SPDX-License-Identifier: Apache-2.0
"""A LightningModule for the models of models.py, and its data."""

import torch
import torchmetrics
from lightning.pytorch import Callback, LightningModule
from models import make_batch, make_model

SAMPLES = 64


class Model(LightningModule):
    """Nothing in it knows that it may be cut."""

    def __init__(self, name: str, bad: str | None = None) -> None:
        super().__init__()
        self.net = make_model(name)
        self.name, self.bad = name, bad
        self.train_loss, self.mean_loss = torchmetrics.MeanMetric(), torchmetrics.MeanMetric()
        self.kept, self.rows = [], 0
        self.hooks = []

    def training_step(self, batch, batch_idx):
        loss = self.net(**batch)["loss"]
        if self.bad == "twice":
            loss = loss + self.net(**batch)["loss"]
        if self.bad == "pickle":
            return {"loss": loss, "extra": lambda: None}
        self.train_loss.update(loss)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        self.log("train_mean", self.train_loss.compute())
        self.train_loss.reset()

    def validation_step(self, batch, batch_idx):
        out = self.net(**batch)
        self.mean_loss.update(out["loss"], weight=len(batch["labels"]))
        self.kept.append(out["logits"].detach())
        self.log("val_loss", out["loss"], sync_dist=True)
        self.log("val_mean", self.mean_loss)

    def on_validation_epoch_end(self):
        self.rows = len(torch.cat(self.kept))
        self.kept.clear()

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.net(**batch)["loss"], sync_dist=True)

    def predict_step(self, batch, batch_idx):
        return {"logits": self.net(**batch)["logits"], "first": batch["input_ids"][:, 0]}

    def on_before_backward(self, loss):
        self.hooks.append("before_backward")

    def on_after_backward(self):
        self.hooks.append("after_backward")

    def on_before_optimizer_step(self, optimizer):
        self.hooks.append("before_step")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Losses(Callback):
    def __init__(self) -> None:
        self.values = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.values.append(float(outputs["loss"]))
        own = [p.to_local() if hasattr(p, "to_local") else p for p in module.parameters()]
        self.numbers = sum(parameter.numel() for parameter in own)


def samples(name: str) -> list[dict]:
    rows = [make_batch(name, samples=1, seed=seed) for seed in range(SAMPLES)]
    return [{key: value[0] for key, value in row.items()} for row in rows]


def error_of(call) -> str | None:
    """What ``call`` raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
