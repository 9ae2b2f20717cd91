# SPDX-License-Identifier: Apache-2.0
"""Loaders whose position is unknown after a change of batches begin their epoch again, which a log line says."""

import logging

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, IterableDataset

from lightning_sagemaker import AutoResume
from tests.conftest import new_process


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(16))


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, index):
        first = batch[0] if isinstance(batch, list) else batch
        self.seen.append((self.current_epoch, first.tolist()))
        return self.layer(first[:, None].float()).mean() * 1e-9

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class SavesAt(Callback):
    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def stream(size):
    return DataLoader(Stream(), size)


def combined(size):
    """Of 8 and of 16 samples: the shorter one has begun again by the middle."""
    return CombinedLoader([DataLoader(range(16), size), DataLoader(range(8), size)], "max_size_cycle")


@pytest.mark.parametrize("loader", [stream, combined])
def test_the_epoch_is_restarted_and_it_is_said(loader, tmp_path, caplog):
    def trained(size, *callbacks):
        new_process()
        model = Model()
        trainer = Trainer(
            accelerator="cpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
            callbacks=[AutoResume(tmp_path, search=not callbacks), *callbacks], use_distributed_sampler=False,
        )  # fmt: skip
        trainer.fit(model, loader(size))
        return model.seen

    trained(2, SavesAt(6, tmp_path / "step.ckpt"))
    with caplog.at_level(logging.INFO):
        seen = trained(4)
    assert seen == [(epoch, [*range(begin, begin + 4)]) for epoch in (0, 1) for begin in (0, 4, 8, 12)]
    assert "is unknown here, so its epoch starts over: some samples are seen twice. HINT: " in caplog.text


@pytest.mark.parametrize("count", [16, 20])
def test_data_that_has_grown_within_an_epoch_is_named(count, tmp_path, recwarn):
    def trained(samples, *callbacks):
        new_process()
        trainer = Trainer(
            accelerator="cpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
            callbacks=[AutoResume(tmp_path, search=not callbacks), *callbacks],
        )  # fmt: skip
        trainer.fit(Model(), DataLoader(range(samples), 2, shuffle=True))

    trained(16, SavesAt(3, tmp_path / "step.ckpt"))
    trained(count)
    said = [str(one.message) for one in recwarn if "when the checkpoint was saved within an epoch" in str(one.message)]
    assert len(said) == (count != 16)
    assert all(f"has {count} samples, and had 16" in one for one in said)
