# SPDX-License-Identifier: Apache-2.0
"""A batch that fails after its optimizer step is not stepped again by a run that resumes from a checkpoint of then."""

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers.logger import Logger
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume
from tests.conftest import new_process

DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))


class Fails(Exception):
    pass


class Module(LightningModule):
    def __init__(self, place=None, at=None, schedules="step"):
        super().__init__()
        self.net, self.place, self.at, self.schedules = torch.nn.Linear(4, 1), place, at, schedules
        self.steps, self.validations = [], []

    def fail(self, place):
        if (place, self.trainer.fit_loop.epoch_loop.total_batch_idx) == (self.place, self.at):
            raise Fails

    def training_step(self, batch, index):
        loss = self.net(batch).square().mean()
        self.steps.append((self.current_epoch, index, loss.item(), self.trainer.optimizers[0].param_groups[0]["lr"]))
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        loss = self.net(batch).square().mean()
        self.log("validation", loss)
        self.validations.append((self.global_step, loss.item()))

    def optimizer_step(self, *arguments):
        super().optimizer_step(*arguments)
        self.fail("after the step")

    def lr_scheduler_step(self, scheduler, metric):
        if not isinstance(scheduler, StepLR):
            self.fail("before a scheduler")
        super().lr_scheduler_step(scheduler, metric)
        self.fail("after a scheduler")

    def on_train_batch_end(self, *_):
        self.fail("in the module's hook")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.02, momentum=0.9)
        if self.schedules == "plateau":
            plateau = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "validation"}}
        each = [StepLR(optimizer, 2, 0.9), ExponentialLR(optimizer, 0.9)]
        intervals = ["step", "epoch"] if self.schedules == "both" else [self.schedules] * 2
        pairs = zip(each, intervals, strict=True)
        return [optimizer], [{"scheduler": one, "interval": interval} for one, interval in pairs]


class Manual(Module):
    def __init__(self, place=None, at=None, schedules="step"):
        super().__init__(place, at, schedules)
        self.automatic_optimization = False

    def training_step(self, batch, index):
        loss, optimizer = super().training_step(batch, index), self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.fail("after the step")


class Rows(Logger):
    name, version = "rows", 0

    def __init__(self, module):
        super().__init__()
        self.module = module

    def log_metrics(self, metrics, step=None):
        self.module.fail("in a logger")

    def save(self):
        self.module.fail("in a logger that saves")

    def log_hyperparams(self, *_):
        pass


class SavesOnException(Callback):
    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, module, *_):
        module.fail("in a callback's hook")

    def on_exception(self, trainer, module, exception):
        trainer.save_checkpoint(self.path)


def fit(folder, module, **options):
    new_process()
    torch.manual_seed(1)
    with torch.no_grad():
        module.net.weight.fill_(0.5)
        module.net.bias.fill_(0.1)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=3, logger=Rows(module), log_every_n_steps=1, num_sanity_val_steps=0,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[AutoResume(folder), SavesOnException(folder / "failed.ckpt")], **options,
    )  # fmt: skip
    trainer.fit(module, DataLoader(DATA, 4, shuffle=True), DataLoader(DATA, 8))
    return trainer


def check(folder, place, at, schedules="step", kind=Module, **options):
    through, failed, resumed = kind(schedules=schedules), kind(place, at, schedules), kind(schedules=schedules)
    expected = fit(folder / "through", through, **options)
    with pytest.raises(Fails):
        fit(folder, failed, **options)
    trainer = fit(folder, resumed, **options)
    assert [*failed.steps, *resumed.steps] == through.steps
    assert [*failed.validations, *resumed.validations] == through.validations
    assert trainer.global_step == expected.global_step
    assert torch.equal(resumed.net.weight, through.net.weight)
    rates = [one.optimizers[0].param_groups[0]["lr"] for one in (trainer, expected)]
    assert rates[0] == rates[1]


IN_THE_STEP = ["after the step", "before a scheduler", "after a scheduler"]
AFTER_IT = ["in a callback's hook", "in the module's hook", "in a logger", "in a logger that saves"]


@pytest.mark.parametrize("options", [{}, {"val_check_interval": 2}, {"accumulate_grad_batches": 2}], ids=str)
@pytest.mark.parametrize("place", IN_THE_STEP + AFTER_IT)
def test_within_an_epoch(tmp_path, place, options):
    check(tmp_path, place, 3, **options)


@pytest.mark.parametrize("schedules", ["step", "epoch", "both", "plateau"])
@pytest.mark.parametrize("place", IN_THE_STEP + AFTER_IT)
def test_at_an_epochs_last_batch(tmp_path, place, schedules):
    check(tmp_path, place, 11, schedules)


@pytest.mark.parametrize("place", ["after the step", *AFTER_IT])
def test_with_manual_optimization(tmp_path, place):
    check(tmp_path, place, 3, kind=Manual)


def test_what_is_left_out_is_said(tmp_path):
    with pytest.warns(UserWarning, match="ended a batch after its optimizer step"), pytest.raises(Fails):
        fit(tmp_path, Module("after the step", 3))
