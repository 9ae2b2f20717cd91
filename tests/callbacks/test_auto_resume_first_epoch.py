# SPDX-License-Identifier: Apache-2.0
"""A run that was interrupted before its first step begins with the first epoch, not with the second."""

import itertools

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume
from tests.conftest import new_process


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, index):
        self.seen.append((self.current_epoch, batch.tolist()))
        return self.layer(batch[:, None].float()).mean() * 1e-9

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Saves(Callback):
    def __init__(self, hook, epoch, path):
        setattr(
            self, hook, lambda trainer, *_: trainer.save_checkpoint(path) if trainer.current_epoch == epoch else None
        )


def trained(folder, workers, saves=None, batch=4):
    new_process()
    seed_everything(1, verbose=False)
    model = Model()
    callbacks = [AutoResume(folder, search=saves is None), *([] if saves is None else [saves])]
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, callbacks=callbacks, enable_checkpointing=False, max_epochs=3,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(model, DataLoader(range(24), batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0))
    return model.seen


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("hook", "epoch"), [("on_train_start", 0), ("on_train_epoch_start", 0), ("on_train_epoch_start", 1)]
)
def test_no_epoch_is_left_out(tmp_path, hook, epoch, workers):
    expected = trained(tmp_path, workers, Saves(hook, epoch, tmp_path / "auto-step=0.ckpt"))
    assert trained(tmp_path, workers) == [row for row in expected if row[0] >= epoch]


def test_in_other_batches_each_epoch_has_all_samples(tmp_path):
    trained(tmp_path, 0, Saves("on_train_start", 0, tmp_path / "auto-step=0.ckpt"))
    seen = trained(tmp_path, 0, batch=6)
    for epoch in range(3):
        assert sorted(itertools.chain(*(batch for number, batch in seen if number == epoch))) == list(range(24))
