# SPDX-License-Identifier: Apache-2.0
"""What is summed up over an epoch is not lost when training stops in its midst."""

import contextlib
import os
import signal

import pytest
import torch
import torchmetrics
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume, MetricLogger, ResumableLoader, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted
from tests.unit.test_stopping import SignalAt


class Model(LightningModule):
    """A mean by Lightning, one by torchmetrics, a list of all values, and a metric that Lightning resets itself."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.mean = torchmetrics.MeanMetric()
        self.all = torchmetrics.CatMetric()
        self.logged = torchmetrics.MeanMetric()
        self.found = []

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        self.log("highest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.mean.update(loss.detach())
        self.all.update(loss.detach())
        self.logged.update(loss.detach())
        self.log("logged", self.logged, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        self.found.append((float(self.mean.compute()), self.all.compute().tolist()))
        self.mean.reset()
        self.all.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Rows(MetricLogger):
    """Keeps the rows of whole epochs."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        if "loss" in metrics:
            self.rows.append({**metrics, "step": step})


def train(folder, stop=None):
    seed_everything(0, verbose=False)
    data = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    logger = Rows()
    spot = SpotInterruption(folder, overhead=1.0)
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, logger=logger, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[AutoResume(folder), spot, SignalAt(stop)], default_root_dir=folder,
    )  # fmt: skip
    module = Model()
    try:
        trainer.fit(module, ResumableLoader(data, trainer, 4))
    except Interrupted:
        assert stop is not None
    return module.found, logger.rows


@pytest.mark.parametrize("stop", [3, 6, 8, 11])
def test_epochs_are_whole(tmp_path, stop):
    whole, logged = train(tmp_path / "whole")
    before, before_logged = train(tmp_path / "parts", stop)
    after, after_logged = train(tmp_path / "parts")
    assert len(before) + len(after) == 2
    assert [*before, *after] == whole
    assert [*before_logged, *after_logged] == logged


class Validated(Model):
    """Notes what is done at the end of an epoch, in which order, and with how many batches."""

    def __init__(self):
        super().__init__()
        self.events = []

    def on_validation_epoch_start(self):
        self.count = 0

    def validation_step(self, batch, index):
        self.count += 1
        self.log("val_loss", self.layer(batch).square().mean())

    def on_validation_epoch_end(self):
        value = float(self.trainer.callback_metrics.get("val_loss", 0.0))
        self.events.append(("validation", self.current_epoch, self.count, value))

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        self.events.append(("end", self.current_epoch, self.all._update_count))


class SignalInValidation(Callback):
    def __init__(self, epoch):
        self.epoch = epoch

    def on_validation_batch_start(self, trainer, module, batch, index, loader=0):
        if trainer.current_epoch == self.epoch and index == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_validation_at_the_end_of_an_epoch_is_done_again(tmp_path):
    def run(folder, epoch=None):
        seed_everything(0, verbose=False)
        data = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
        stop = [] if epoch is None else [SignalInValidation(epoch)]
        trainer = Trainer(
            accelerator="cpu", max_epochs=2, logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, num_sanity_val_steps=0, default_root_dir=folder,
            callbacks=[AutoResume(folder), SpotInterruption(folder, overhead=1.0), *stop],
        )  # fmt: skip
        module = Validated()
        with contextlib.suppress(Interrupted):
            trainer.fit(module, ResumableLoader(data, trainer, 4), DataLoader(data, batch_size=4))
        return module.events

    whole = run(tmp_path / "whole")
    assert run(tmp_path / "parts", 0) == []
    assert run(tmp_path / "parts") == whole
    assert [event[:3] for event in whole] == [("validation", 0, 8), ("end", 0, 0), ("validation", 1, 8), ("end", 1, 0)]
