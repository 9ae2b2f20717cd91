# SPDX-License-Identifier: Apache-2.0
"""Metrics of torchmetrics go on where a run was stopped, wherever a script keeps them."""

import contextlib

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric, MeanSquaredError, MetricTracker, MinMaxMetric
from torchmetrics.wrappers import Running

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted
from lightning_sagemaker.checkpoint.metric_state import of_lost_rank, without_sums
from tests.callbacks.test_interruption import SignalAt


class Holder:
    def __init__(self):
        self.mean = MeanMetric()


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.found = torch.nn.Linear(4, 1), []
        self.by_phase = {"train": {"loss": MeanMetric()}}
        self.listed, self.holder = [MeanMetric()], Holder()
        self.extrema, self.window = MinMaxMetric(MeanMetric()), Running(MeanMetric(), window=3)
        self.best = MetricTracker(MeanSquaredError(), maximize=False)

    def on_train_epoch_start(self):
        self.best.increment()

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        for one in (self.by_phase["train"]["loss"], self.listed[0], self.holder.mean, self.extrema, self.window):
            one.update(loss.detach())
        self.best.update(self.layer(batch).detach(), batch.sum(1, keepdim=True))
        return loss

    def on_train_batch_end(self, *_):
        self.found.append((self.global_step, "window", float(self.window.compute())))
        self.found.append((self.global_step, "extrema", float(self.extrema.compute()["min"])))

    def on_train_epoch_end(self):
        for one in (self.by_phase["train"]["loss"], self.listed[0], self.holder.mean):
            self.found.append((self.global_step, "mean", float(one.compute())))
            one.reset()
        self.found.append((self.global_step, "best", self.best.n_steps, self.best.best_metric()))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Averages(Callback):
    def __init__(self):
        self.mean = MeanMetric()

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.mean.update(outputs["loss"])

    def on_train_epoch_end(self, trainer, module):
        module.found.append((trainer.global_step, "callback", float(self.mean.compute())))
        self.mean.reset()


def train(folder, stop=None):
    seed_everything(0, verbose=False)
    data = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    callbacks = [Averages(), AutoResume(folder), SpotInterruption(folder, overhead=1.0), SignalAt(stop)]
    trainer = Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=callbacks, default_root_dir=folder,
    )  # fmt: skip
    module = Module()
    with contextlib.suppress(Interrupted):
        trainer.fit(module, DataLoader(data, 4, shuffle=True))
    return module.found


@pytest.mark.parametrize("stop", [2, 7])
def test_metrics_in_containers_wrappers_and_callbacks_go_on(tmp_path, stop):
    whole = train(tmp_path / "whole")
    before, after = train(tmp_path / "parts", stop), train(tmp_path / "parts")
    assert [*before, *after] == whole


def test_a_replacement_has_no_sums_but_the_trackers_and_what_wrappers_keep():
    entry = {"count": 2, "states": {"sum": torch.ones(())}, "own": {}}
    states = {
        "metrics": {"mean": entry, "extrema": {**entry, "own": {"min_val": 1}}},
        "logged": {},
        "trackers": {"a": 2},
    }
    assert without_sums(states) == {
        "metrics": {"extrema": {"count": 0, "states": {}, "own": {"min_val": 1}}},
        "logged": {},
        "trackers": {"a": 2},
    }


@pytest.mark.parametrize(("is_synced", "mean"), [(True, None), (False, 3.0)])
def test_a_replacements_mean_is_that_of_the_others_not_of_nothing(is_synced, mean):
    """It may have no batch of the epoch any more, and an early stopping ends at a nan."""
    settings = {"reduce_fx": "mean", "sync_dist": is_synced, "rank_zero_only": False}
    entry = {"values": [torch.tensor(6.0), torch.tensor(2)], "settings": settings, "cache": None}
    value, count = of_lost_rank({"metrics": {}, "logged": {"loss": entry}, "trackers": {}})["logged"]["loss"]["values"]
    assert (None if count == 0 else float(value / count)) == mean


class Logs(LightningModule):
    """Logs with the options of this start."""

    def __init__(self, **options):
        super().__init__()
        self.layer, self.options = torch.nn.Linear(4, 1), options

    def on_train_start(self):
        self.log("begun_at", float(self.global_step))

    def training_step(self, batch, index):
        self.log("sample", batch[:, 0].mean(), on_epoch=True, **self.options)
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_a_value_that_is_logged_with_other_options_than_before_goes_on(tmp_path):
    """As sync_dist=trainer.world_size > 1 on another number of ranks; Lightning would take it for a second call."""

    def run(stop, **options):
        trainer = Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, callbacks=[AutoResume(tmp_path), SpotInterruption(tmp_path), SignalAt(stop)],
        )  # fmt: skip
        data = torch.arange(16.0).reshape(16, 1).expand(16, 4)
        with contextlib.suppress(Interrupted):
            trainer.fit(Logs(**options), DataLoader(data, 2))
        return trainer

    run(3, sync_dist=True)
    trainer = run(None, sync_dist=False, prog_bar=True)
    assert float(trainer.callback_metrics["sample_epoch"]) == 7.5
    assert "sample_epoch" in trainer.progress_bar_metrics
    assert float(trainer.callback_metrics["begun_at"]) == 0  # as in the run left alone, which begins once
