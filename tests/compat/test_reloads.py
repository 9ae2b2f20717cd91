# SPDX-License-Identifier: Apache-2.0
"""A resumed run trains on what it would have trained on, where each few epochs have loaders of their own."""

import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume
from tests.conftest import new_process


class Data(LightningDataModule):
    """Samples that name the epoch in which the loaders were requested."""

    def __init__(self):
        super().__init__()
        self.requested = []

    def train_dataloader(self):
        epoch = self.trainer.current_epoch
        self.requested.append(epoch)
        return DataLoader(range(1000 * epoch, 1000 * epoch + 24), batch_size=4, shuffle=True)

    def val_dataloader(self):
        epoch = self.trainer.current_epoch
        return DataLoader(range(1000 * epoch, 1000 * epoch + 8), batch_size=4)


class Model(LightningModule):
    def __init__(self, counts_steps):
        super().__init__()
        self.layer, self.counts_steps, self.seen, self.validated = torch.nn.Linear(1, 1), counts_steps, {}, {}

    def training_step(self, batch, index):
        self.seen[self.trainer.global_step] = batch.tolist()
        return self.layer(batch[:, None].float()).mean() * 1e-9

    def validation_step(self, batch, index):
        self.validated[self.trainer.global_step, index] = batch.tolist()

    def configure_optimizers(self):
        if self.counts_steps:  # which has the loaders made before a checkpoint is loaded
            assert self.trainer.estimated_stepping_batches == 36
        return torch.optim.SGD(self.parameters(), 0.1)


def trained(folder, every, counts_steps, kinds=(Model, Data), seed=1, **options):
    new_process()
    seed_everything(seed, verbose=False)
    model, data = kinds[0](counts_steps), kinds[1]()
    saves = ModelCheckpoint(folder, every_n_train_steps=options.get("max_steps", 36))
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, callbacks=[AutoResume(folder), saves], enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, reload_dataloaders_every_n_epochs=every,
        max_epochs=6, **options,
    )  # fmt: skip
    trainer.fit(model, datamodule=data)
    return model, data


@pytest.mark.parametrize("counts_steps", [False, True])
@pytest.mark.parametrize("every", [1, 2, 4])
def test_a_resumed_run_has_the_loaders_of_one_that_was_left_alone(tmp_path, every, counts_steps):
    alone, data = trained(tmp_path / "alone", every, counts_steps)
    assert data.requested == [epoch for epoch in range(6) if epoch % every == 0]
    for stop in (3, 18, 20, 33):
        folder = tmp_path / str(stop)
        before, _ = trained(folder, every, counts_steps=False, max_steps=stop)
        after, again = trained(folder, every, counts_steps)
        assert before.seen | after.seen == alone.seen
        assert before.validated | after.validated == alone.validated
        assert again.requested[-1] == data.requested[-1]


def test_loaders_that_are_not_reloaded_are_those_of_the_first_epoch(tmp_path):
    """In whichever epoch the resumed run requests them."""
    alone, data = trained(tmp_path / "alone", 0, False)
    assert data.requested == [0]
    before, _ = trained(tmp_path / "stopped", 0, False, max_steps=20)
    after, again = trained(tmp_path / "stopped", 0, False)
    assert before.seen | after.seen == alone.seen
    assert before.validated | after.validated == alone.validated
    assert again.requested == [0]


class Drawn(Data):
    """Loaders of random subsets, and numbers that an epoch's first hook draws after them."""

    def train_dataloader(self):
        return DataLoader((super().train_dataloader().dataset[0] + torch.randperm(100)[:24]).tolist(), 4, shuffle=True)

    def val_dataloader(self):
        return DataLoader(torch.randperm(100)[:8].tolist(), batch_size=4)


class Drawing(Model):
    def on_train_epoch_start(self):
        self.offset = float(torch.rand(()))

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.seen[self.trainer.global_step].append(self.offset)
        return loss


@pytest.mark.parametrize("every", [1, 2])
def test_numbers_that_a_request_draws_are_those_of_then(tmp_path, every):
    alone, _ = trained(tmp_path / "alone", every, False, kinds=(Drawing, Drawn))
    for stop in (3, 12, 20):
        folder = tmp_path / str(stop)
        before, _ = trained(folder, every, False, kinds=(Drawing, Drawn), max_steps=stop)
        after, _ = trained(folder, every, False, kinds=(Drawing, Drawn))
        assert before.seen | after.seen == alone.seen
        assert before.validated | after.validated == alone.validated


class Split(LightningDataModule):
    """Both draw a subset, and are requested once: validation's first, by the sanity check."""

    def train_dataloader(self):
        return DataLoader(torch.randperm(100)[:24].tolist(), batch_size=4, shuffle=True)

    def val_dataloader(self):
        return DataLoader(torch.randperm(100)[:8].tolist(), batch_size=4)


@pytest.mark.parametrize("options", [{}, {"check_val_every_n_epoch": 2}, {"num_sanity_val_steps": 0}])
def test_a_sanity_check_that_is_not_repeated_has_requested_loaders(tmp_path, options):
    alone, _ = trained(tmp_path / "alone", 0, False, kinds=(Model, Split), **options)
    for stop in (3, 8, 12):
        folder = tmp_path / str(stop)
        before, _ = trained(folder, 0, False, kinds=(Model, Split), max_steps=stop, **options)
        after, _ = trained(folder, 0, False, kinds=(Model, Split), seed=2, **options)  # as without a seed
        assert before.seen | after.seen == alone.seen
        assert before.validated | after.validated == alone.validated


class Levels(Data):
    """Its samples are those of a level, which a hook raises with each epoch, and which is in checkpoints."""

    level = 0

    def train_dataloader(self):
        return DataLoader(range(1000 * self.level, 1000 * self.level + 24), batch_size=4, shuffle=True)

    def state_dict(self):
        return {"level": self.level}

    def load_state_dict(self, state):
        self.level = state["level"]


class Raises(Model):
    def on_train_batch_end(self, outputs, batch, index):
        self.trainer.datamodule.level += index == 4


@pytest.mark.parametrize("every", [0, 2])
def test_loaders_are_those_of_the_data_module_when_they_were_requested(tmp_path, every):
    alone, data = trained(tmp_path / "alone", every, False, kinds=(Raises, Levels))
    assert data.level == 6
    for stop in (3, 12, 20):
        before, _ = trained(tmp_path / str(stop), every, False, kinds=(Raises, Levels), max_steps=stop)
        after, again = trained(tmp_path / str(stop), every, False, kinds=(Raises, Levels))
        assert before.seen | after.seen == alone.seen
        assert again.level == 6
