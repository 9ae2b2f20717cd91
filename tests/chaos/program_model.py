# SPDX-License-Identifier: Apache-2.0
"""The module and the Trainer of program.py."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torchmetrics
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
)

from tests.chaos.averages import AVERAGES
from tests.chaos.program_data import FEATURES, batches_of, evaluation_loader, train_loader
from tests.chaos.recorder import Recorder
from tests.chaos.strike import Strike

warnings.filterwarnings("ignore")
PATIENCE = 10.0
"""Seconds for which a rank waits for one that is gone."""


class Weight:
    """A loss's weight that an epoch has: an object, which no checkpoint holds."""

    def __init__(self, epoch: int) -> None:
        self.value = torch.tensor(1.0 / (1 + epoch % 3))

    def __reduce__(self) -> str:
        raise TypeError("it is made when an epoch begins")


class Net(LightningModule):
    def __init__(self, case: dict[str, Any], strike: Strike) -> None:
        super().__init__()
        norm = [torch.nn.BatchNorm1d(16)] if case["model"] == "batchnorm" else []
        # With a bias before the norm, whose gradient is zero, Adam would step by the rounding.
        first = torch.nn.Linear(FEATURES, 16, bias=not norm)
        self.body = torch.nn.Sequential(first, *norm, torch.nn.ReLU(), torch.nn.Dropout(0.2))
        self.head = torch.nn.Linear(16, 1)
        self.register_buffer("average", torch.zeros(16))
        self.outputs: list[torch.Tensor] = []
        self.weight: Weight | None = None
        self.case, self.strike = case, strike
        self.automatic_optimization = case["optimization"] == "automatic"
        if case["metrics"] == "torchmetrics":
            self.train_error, self.val_error = torchmetrics.MeanSquaredError(), torchmetrics.MeanSquaredError()

    def forward(self, x):
        return self.head(self.body(x))

    def _loss(self, batch):
        parts = [batch] if "x" in batch else batch.values()
        loss = sum(torch.nn.functional.mse_loss(self(part["x"]), part["y"]) for part in parts)
        return loss * self.weight.value if self.training and self.case["model"] == "dropout" else loss

    def on_train_epoch_start(self):
        self.weight = Weight(self.current_epoch)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
            torch.distributed.all_reduce(self.weight.value)
            self.weight.value /= torch.distributed.get_world_size()

    def training_step(self, batch, batch_idx):
        self.strike.reach(self.trainer, "train_step")
        if (batch_idx + 1) % self.trainer.accumulate_grad_batches:
            self.strike.reach(self.trainer, "accumulation")
        time.sleep(self.case["pause"])
        loss = self._loss(batch)
        self.outputs.append(loss)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        if self.case["metrics"] == "torchmetrics":
            part = batch if "x" in batch else batch["a"]
            self.train_error(self(part["x"]).detach(), part["y"])
            self.log("train_error", self.train_error, on_step=False, on_epoch=True)
        if not self.automatic_optimization:
            self._step(loss)
        return loss

    def _step(self, loss):
        optimizers = self.optimizers()
        optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        if self.case["schedule"] in ("step", "warmup"):
            self._move_schedules()

    def _move_schedules(self):
        schedules = self.lr_schedulers()
        for schedule in schedules if isinstance(schedules, list) else [schedules]:
            if self.case["schedule"] == "plateau":
                schedule.step(self.trainer.callback_metrics[_watched(self.case)])
            else:
                schedule.step()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.case["strategy"] == "replicas":  # whose weights are on several ranks
            self.average.add_(1.0)
        else:
            self.average.lerp_(self.head.weight.detach()[0], 0.1)

    def on_train_epoch_end(self):
        self.log("mean_output", torch.stack(self.outputs).mean())
        self.outputs.clear()
        is_due = self.case["val"] != "second_epoch" or self.current_epoch % 2
        if not self.automatic_optimization and self.case["schedule"] in ("epoch", "plateau") and is_due:
            self._move_schedules()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        name = "val_loss" if not dataloader_idx else "val_second_loss"
        self.log(name, self._loss(batch), sync_dist=True, add_dataloader_idx=False)
        if self.case["metrics"] == "torchmetrics" and not dataloader_idx:
            self.val_error(self(batch["x"]), batch["y"])
            self.log("val_error", self.val_error, add_dataloader_idx=False)

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self._loss(batch), sync_dist=True)

    def predict_step(self, batch, batch_idx):
        return self(batch["x"])

    def configure_optimizers(self):
        if self.case["optimization"] == "manual_two":
            optimizers = [
                torch.optim.Adam(self.body.parameters(), lr=0.02),
                torch.optim.SGD(self.head.parameters(), 0.01, 0.9),
            ]
        else:
            optimizers = [_OPTIMIZERS[self.case.get("optimizer", "adam")](self.parameters())]
        if self.case["schedule"] == "none":
            return optimizers
        return optimizers, [self._schedule(optimizer) for optimizer in optimizers]

    def _schedule(self, optimizer):
        schedules = torch.optim.lr_scheduler
        match self.case["schedule"]:
            case "step":
                return {
                    "scheduler": schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step / 10)),
                    "interval": "step",
                }
            case "epoch":
                return {"scheduler": schedules.StepLR(optimizer, 1, gamma=0.7), "interval": "epoch"}
            case "plateau":
                plateau = schedules.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
                frequency = 2 if self.case["val"] == "second_epoch" else 1
                return {"scheduler": plateau, "monitor": _watched(self.case), "frequency": frequency}
        steps = 0.4 * self.trainer.estimated_stepping_batches
        return {
            "scheduler": schedules.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps)),
            "interval": "step",
        }

    def train_dataloader(self):
        return train_loader(self.case, self.trainer)

    def val_dataloader(self):
        if self.case["val"] == "none":
            return []
        first = evaluation_loader(self.case)
        return [first, evaluation_loader(self.case)] if self.case.get("loaders") == "two" else first

    def test_dataloader(self):
        return evaluation_loader(self.case)

    predict_dataloader = test_dataloader


class Twice(torch.optim.SGD):
    """Computes the gradients of a step at two places, as sharpness-aware minimization does."""

    def step(self, closure):
        with torch.enable_grad():
            closure()
        super().step()
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss


_OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.02, max_iter=3),
    "twice": lambda parameters: Twice(parameters, lr=0.01),
}


def _watched(case: dict[str, Any]) -> str:
    return "train_loss_epoch" if case["val"] == "none" else "val_loss"


def steps_of(case: dict[str, Any]) -> int:
    """Of a run that ends by their number: in the third epoch."""
    batches = batches_of(case)
    first, later = (2, 3) if case["accumulate"] == "scheduler" else (case["accumulate"],) * 2
    steps = -(-batches // first) + int(1.4 * -(-batches // later))
    return steps * (2 if case["optimization"] == "manual_two" else 1)


def _end(case: dict[str, Any]) -> dict[str, Any]:
    match case["end"]:
        case "steps":
            return {"max_steps": case["steps"], "max_epochs": -1}
        case "epochs":
            return {"max_epochs": 3}
        case "time":
            return {"max_time": timedelta(seconds=case["seconds"]), "max_epochs": -1}
    return {"max_epochs": 9}


def _validation(case: dict[str, Any]) -> dict[str, Any]:
    kinds = {"half": {"val_check_interval": 0.5}, "second_epoch": {"check_val_every_n_epoch": 2}}
    kinds["batches"] = {"val_check_interval": 7, "check_val_every_n_epoch": None}
    return kinds.get(case["val"], {})


def _callbacks(case: dict[str, Any], folder: Path) -> list[Any]:
    found: list[Any] = []
    if case["end"] == "early_stopping":
        found.append(EarlyStopping(_watched(case), min_delta=10.0, patience=3, verbose=False))
    match case["extra"]:
        case "early_stopping":
            found.append(
                EarlyStopping(_watched(case), min_delta=0.3, patience=1000, mode="min", stopping_threshold=-1.0)
            )
        case "ema":
            found.append(EMAWeightAveraging(decay=0.9))
        case "swa":
            found.append(StochasticWeightAveraging(0.01, swa_epoch_start=1, annealing_epochs=2))
        case "loads_averages" | "exchanges_values" | "exchanges_pointers":
            found.append(AVERAGES[case["extra"]]())
    if case["accumulate"] == "scheduler":
        found.append(GradientAccumulationScheduler({0: 2, 1: 3}))
    options: dict[str, dict[str, Any]] = {
        "every_steps": {"every_n_train_steps": 3},
        "top_k": {"monitor": _watched(case), "save_top_k": 2},
        "epoch_last": {"save_last": True},
        "time": {"train_time_interval": timedelta(seconds=0.01)},
    }
    if case["checkpoint"] != "none":
        found.append(ModelCheckpoint(folder / "own", **options[case["checkpoint"]]))
    return found


def _strategy(case: dict[str, Any]) -> Any:
    if case["strategy"] != "replicas":
        return case["strategy"]
    from lightning_sagemaker import SMDDPFSDPStrategy

    return SMDDPFSDPStrategy(hybrid_shard_degree=2)


def _ours(case: dict[str, Any], folder: Path) -> list[Any]:
    from lightning_sagemaker import AutoResume, SpotInterruption

    every = None if case["save"] == "none" else timedelta(seconds=0.05)
    place = folder / "checkpoints"
    return [
        AutoResume(place),
        SpotInterruption(place, save_every=every, patience=PATIENCE, overhead=case["overhead"]),
    ]


def strike_of(case: dict[str, Any], start: int) -> dict[str, Any] | None:
    """Of this start."""
    if not case["ours"] or start > 1 or (start and not case["again"]):
        return None
    strike = {name: case[name] for name in ("signal", "phase", "at", "to")}
    if start:
        strike = {"signal": case.get("second", "SIGTERM"), "phase": "train_step", "at": 3, "to": "all"}
    return strike | {"has_launcher": case["launcher"] == "torchrun"}


def run(folder: Path, case: dict[str, Any], start: int, callbacks: Sequence[Any] = ()) -> None:
    """Train, and what else the case says; ``callbacks`` come before the recorder."""
    torch.set_num_threads(1)
    seed_everything(1, verbose=False)
    recorder = Recorder(folder, start)
    strike = Strike(strike_of(case, start), recorder)
    ours = _ours(case, folder) if case["ours"] and case.get("resumes", True) else []
    trainer = Trainer(
        accelerator="cpu",
        devices=case["ranks"],
        strategy=_strategy(case),
        accumulate_grad_batches=case["accumulate"] if isinstance(case["accumulate"], int) else 1,
        limit_train_batches=case["limit_train"],
        limit_val_batches=case["limit_val"],
        num_sanity_val_steps=case["sanity"],
        use_distributed_sampler=case["data"] != "epoch_sampler",
        logger=False,
        enable_checkpointing=case["checkpoint"] != "none",
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        gradient_clip_val=0.3 if case.get("clip") else None,
        gradient_clip_algorithm=case.get("clip") or None,
        reload_dataloaders_every_n_epochs=case.get("reload", 0),
        precision=case.get("precision", "32-true"),
        callbacks=[*_callbacks(case, folder), *ours, *callbacks, strike, recorder],
        **_end(case),
        **_validation(case),
    )
    recorder.attach(trainer)
    net = Net(case, strike)
    trainer.fit(net)
    if case["phase"] in ("test", "predict"):
        getattr(trainer, case["phase"])(net)
    if trainer.is_global_zero:
        (folder / "done").touch()
