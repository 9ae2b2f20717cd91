# SPDX-License-Identifier: Apache-2.0
"""Rows that a validation logs at each batch have the numbers that they would have had."""

import contextlib

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume, MetricLogger, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted
from tests.callbacks.test_interruption import SignalAt


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, index, dataloader_idx=0):
        self.log("loss", self.layer(batch).square().mean(), on_step=True, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def train_dataloader(self):
        return DataLoader(torch.arange(8.0)[:, None] / 8, 2)

    def val_dataloader(self):
        return [DataLoader(torch.arange(size)[:, None] / 8, 2) for size in (4.0, 6.0)]


class Rows(MetricLogger):
    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, metrics))


def rows(folder, *callbacks, **options):
    """Those of each batch."""
    seed_everything(1, verbose=False)
    logger = Rows()
    trainer = Trainer(
        accelerator="cpu", max_epochs=4, logger=logger, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, default_root_dir=folder,
        callbacks=[AutoResume(folder), SpotInterruption(folder, overhead=1.0), *callbacks], **options,
    )  # fmt: skip
    with contextlib.suppress(Interrupted):
        trainer.fit(Model())
    return [(step, row) for step, row in logger.rows if any("step" in name for name in row)]


@pytest.mark.parametrize("options", [{}, {"reload_dataloaders_every_n_epochs": 2}], ids=["once", "reloaded"])
@pytest.mark.parametrize("sanity", [0, 2])
def test_a_resumed_run_counts_on(tmp_path, sanity, options):
    whole = rows(tmp_path / "whole", num_sanity_val_steps=sanity, **options)
    assert len({step for step, _ in whole}) == (6 if options else 12)
    stops = [[SignalAt(step)] for step in (6, 10, 15)]
    parts = [rows(tmp_path / "parts", *stop, num_sanity_val_steps=sanity, **options) for stop in [*stops, []]]
    assert all(parts)
    assert [row for part in parts for row in part] == whole
