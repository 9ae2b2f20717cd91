# SPDX-License-Identifier: Apache-2.0
"""What training changes and no checkpoint holds is named once; what is kept, set again, a cache or a time is not."""

import contextlib
import time
import warnings

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted
from tests.callbacks.test_interruption import SignalAt


class Rows(Dataset):
    def __init__(self):
        self.rows, self.level = torch.randn(16, 4), 1.0

    def harder(self):
        self.level += 1

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] * self.level


class Quiet(LightningModule):
    """Nothing that it changes matters: means of an epoch or a validation, the last loss, a record, caches, times."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Dropout(0.1))
        self.outputs, self.validated, self.sum, self.table, self.kept, self.record = [], [], 0.0, None, 0, []
        self.at = self.waited = 0.0
        self.register_buffer("count", torch.zeros(()))

    def training_step(self, batch, index):
        self.loss = self.layer(batch).square().mean()
        self.outputs.append(self.loss.detach())
        self.record.append(index)
        self.log("loss", self.loss)
        if self.table is None:
            self.table = torch.ones(4)
        self.count += 1
        self.kept += 1
        return self.loss

    def on_train_batch_end(self, *_):
        self.waited += time.monotonic() - self.at
        self.at = time.monotonic()

    def on_train_epoch_end(self):
        self.outputs.clear()

    def on_validation_epoch_start(self):
        self.validated, self.sum = [], 0.0

    def validation_step(self, batch, index):
        self.sum += float(self.layer(batch).square().mean())
        self.validated.append(self.sum)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["kept"] = self.kept

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Loud(Quiet):
    def __init__(self):
        super().__init__()
        self.beta, self.best, self.data, self.pool = 0.0, 1e9, Rows(), TensorDataset(torch.ones(1))

    def training_step(self, batch, index):
        self.beta = min(1.0, self.beta + 0.1)
        return super().training_step(batch, index) * self.beta

    def on_validation_epoch_end(self):
        if self.sum < self.best:
            self.best = self.sum

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        self.layer[1].p *= 0.9
        self.data.harder()
        self.data.shift = 1.0
        self.pool = TensorDataset(torch.ones(1))


class Warmup(Callback):
    steps = 0

    def on_train_batch_start(self, trainer, module, batch, index):
        self.steps += 1


class Data(LightningDataModule):
    def __init__(self):
        super().__init__()
        self.read = 0

    def train_dataloader(self):
        return DataLoader(torch.randn(16, 4), 4)

    def val_dataloader(self):
        return DataLoader(torch.randn(8, 4), 4)

    def on_before_batch_transfer(self, batch, index):
        self.read += 1
        return batch


def said(folder, module, stop, **options):
    seed_everything(0, verbose=False)
    own = [AutoResume(folder), SpotInterruption(folder, overhead=1.0), SignalAt(stop)]
    trainer = Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[*own, *options.get("callbacks", [])], default_root_dir=folder,
    )  # fmt: skip
    data = options.get("data") or (DataLoader(torch.randn(16, 4), 4), DataLoader(torch.randn(8, 4), 4))
    with warnings.catch_warnings(record=True) as found, contextlib.suppress(Interrupted):
        warnings.simplefilter("always")
        trainer.fit(module, *(data if isinstance(data, tuple) else ()), datamodule=options.get("data"))
    texts = [str(one.message) for one in found if "what training changes" in str(one.message)]
    names = [name for text in texts for name in text.partition(" changes in ")[2].partition(":")[0].split(", ")]
    assert len(names) == len({*names})
    return {*names}


@pytest.mark.parametrize("stop", [2, 9])
def test_what_is_kept_or_set_again_is_not_named(tmp_path, stop):
    assert said(tmp_path, Quiet(), stop) == set()
    assert said(tmp_path, Quiet(), None) == set()


def test_what_is_lost_is_named(tmp_path):
    assert said(tmp_path, Loud(), 9, callbacks=[Warmup()]) == {
        *(f"module.{name}" for name in ("beta", "best", "layer.1.p", "data.level", "data.shift", "pool")),
        "callbacks.1.Warmup.steps",
    }
    assert said(tmp_path / "data", Quiet(), 9, data=Data()) == {"datamodule.read"}
