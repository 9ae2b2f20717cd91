# SPDX-License-Identifier: Apache-2.0
"""What a script sets when an epoch begins, in runs that are stopped within one: compared with stock Lightning."""

import os
import signal

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, Dataset

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted

SAMPLES, BATCH, EPOCHS = 24, 4, 4


class OfEpoch(Dataset):
    """Samples that depend on the epoch, as those of a curriculum."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor([float(index), float(self.epoch), 1 / (1 + self.epoch)])


class Data(LightningDataModule):
    def __init__(self, workers, persistent):
        super().__init__()
        self.options = {"num_workers": workers, "persistent_workers": persistent}

    def setup(self, stage=None):
        self.dataset = OfEpoch()

    def train_dataloader(self):
        return DataLoader(self.dataset, BATCH, shuffle=True, **self.options)


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)
        self.steps = []

    def training_step(self, batch, index):
        loss = self.loss(self.net(batch / SAMPLES).squeeze())
        self.steps.append((self.global_step, batch.tolist(), loss.item()))
        return loss

    def loss(self, output):
        return output.square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.05)


class SetsDataset(Module):
    def on_train_epoch_start(self):
        self.trainer.datamodule.dataset.epoch = self.current_epoch + 1  # workers of the first epoch do not see it


class MakesLoss(Module):
    """An object that there is not before."""

    def on_train_epoch_start(self):
        self.criterion = torch.nn.HuberLoss(delta=0.1 + self.current_epoch)

    def loss(self, output):
        return self.criterion(output, torch.zeros_like(output))


class Draws(Module):
    """Numbers of an epoch that are drawn, into an object that is not the module's."""

    def on_train_epoch_start(self):
        vars(self.trainer)["of_script"] = torch.rand(()) + torch.nn.functional.dropout(torch.ones(8)).mean()
        self.log("drawn", self.trainer.of_script, on_step=False, on_epoch=True)

    def loss(self, output):
        return super().loss(output) * self.trainer.of_script


class Counts(Callback):
    """What a callback's state holds is not counted twice, nor is a buffer."""

    epochs = 0

    def on_train_epoch_start(self, trainer, module):
        self.epochs += 1
        module.trainer.strategy.model.net.bias.data.add_(0.01)

    def on_train_batch_end(self, trainer, module, *_):
        module.steps.append(("epochs", self.epochs))

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


KINDS = {
    "a dataset's epoch": (SetsDataset, list),
    "a loss": (MakesLoss, list),
    "drawn": (Draws, list),
    "counted": (Module, lambda: [Counts()]),
}


class Stop(Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def _run(kind, workers=0, persistent=False, folder=None, stop=None):
    seed_everything(1, verbose=False)
    make, more = KINDS[kind]
    module, own = make(), []
    if folder is not None:
        own = [AutoResume(folder), SpotInterruption(folder, overhead=1.0), Stop(stop)]
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(accelerator="cpu", max_epochs=EPOCHS, callbacks=[*own, *more()], **quiet)
    try:
        trainer.fit(module, datamodule=Data(workers, persistent))
    except Interrupted:
        assert stop is not None
    return module.steps


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_an_epochs_beginning_sets_is_there_when_it_is_resumed(tmp_path, kind, workers, persistent):
    """Workers that outlive epochs see a dataset as it was when they were started, in both runs."""
    alone = _run(kind, workers, persistent)
    resumed = [step for stop in (3, 8, 15, 18, None) for step in _run(kind, workers, persistent, tmp_path, stop)]
    assert resumed == alone
