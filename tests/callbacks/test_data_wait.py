# SPDX-License-Identifier: Apache-2.0
"""The share of time that is spent waiting for data, beside what Lightning's own profiler has measured."""

import logging
import time

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.profilers import SimpleProfiler
from torch.utils.data import DataLoader, Dataset

from lightning_sagemaker import AutoResume, MetricLogger
from lightning_sagemaker.callbacks import DataWait


class Slow(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 48

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.ones(2)


class Module(LightningModule):
    def __init__(self, seconds):
        super().__init__()
        self.layer, self.seconds = torch.nn.Linear(2, 1), seconds

    def training_step(self, batch, index):
        time.sleep(self.seconds)
        return self.layer(batch).sum()

    def validation_step(self, batch, index):
        time.sleep(0.05)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Rows(MetricLogger):
    def __init__(self):
        super().__init__()
        self.found = []

    def log_metrics(self, metrics, step=None):
        self.found += [metrics["data_wait"]] if "data_wait" in metrics else []


def _fit(data, step, **options):
    wait, rows, profiler = DataWait(), Rows(), SimpleProfiler()
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, logger=rows, log_every_n_steps=4, profiler=profiler, callbacks=[wait, AutoResume()],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, **options,
    )  # fmt: skip
    trainer.fit(Module(step), DataLoader(Slow(data), 4), DataLoader(Slow(0), 4))
    assert not {"_on_before_fetch", "_on_after_fetch"} & vars(trainer.fit_loop.epoch_loop).keys()
    durations = profiler.recorded_durations
    fetched = durations["[_TrainingEpochLoop].train_dataloader_next"][1:24]
    trained = durations["run_training_batch"][1:24]
    return wait.shares, rows.found, sum(fetched) / (sum(fetched) + sum(trained))


@pytest.mark.parametrize(("data", "step"), [(0.005, 0.005), (0.0, 0.01), (0.005, 0.0)])
def test_it_is_the_share_that_lightnings_profiler_measures(tmp_path, data, step, caplog):
    with caplog.at_level(logging.INFO, "lightning_sagemaker"):
        (share,), logged, measured = _fit(data, step, default_root_dir=tmp_path)
    assert share == pytest.approx(measured, abs=0.1)
    assert len(logged) == 6
    assert sum(logged) / len(logged) == pytest.approx(share, abs=0.1)
    assert f"waiting for data took rank 0 {share:.1%}" in caplog.text
    assert ("HINT: more or faster loader workers" in caplog.text) == (share > 0.05)


def test_gradients_that_are_accumulated_are_counted_too(tmp_path):
    (share,), logged, measured = _fit(0.005, 0.005, default_root_dir=tmp_path, accumulate_grad_batches=3)
    assert share == pytest.approx(measured, abs=0.1)
    assert len(logged) == 2
