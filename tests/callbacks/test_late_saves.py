# SPDX-License-Identifier: Apache-2.0
"""A run that is killed after a step resumes with what its module's hooks have changed, and an epoch's own numbers."""

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume


class Meter:
    """As scripts have one for a mean."""

    def __init__(self):
        self.sum = 0.0


class Module(LightningModule):
    """An average that follows each batch, outputs of an epoch, and what its start sets."""

    def __init__(self):
        super().__init__()
        self.layer, self.history = torch.nn.Linear(1, 1), []
        self.outputs, self.meters = [], {"loss": Meter()}
        self.register_buffer("average", torch.zeros(()))

    def on_train_epoch_start(self):
        self.first = self.trainer.global_step
        self.meters["loss"] = Meter()

    def training_step(self, batch, index):
        loss = self.layer(batch[:, None].float()).square().mean()
        self.outputs.append(loss)
        self.history.append(index)
        self.meters["loss"].sum += float(loss)
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        self.average.lerp_(outputs["loss"], 0.1)

    def on_train_epoch_end(self):
        self.log("mean", torch.stack(self.outputs).mean())
        self.log("first", float(self.first))
        self.log("sum", self.meters["loss"].sum)
        self.outputs.clear()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-4)


class Killed(Exception):
    pass


class Kill(Callback):
    """As a kill would: in a batch, of which nothing is written."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, index):
        if trainer.global_step == self.step:
            raise Killed


class Means(Callback):
    """An epoch's numbers of its own."""

    def __init__(self):
        self.batches = 0

    def on_train_epoch_start(self, trainer, pl_module):
        self.batches = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, index):
        self.batches += 1

    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.log("batches", float(self.batches))


def trained(folder, kill=None):
    seed_everything(1, verbose=False)
    module = Module()
    saves = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, max_epochs=2, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[AutoResume(folder), saves, Means(), Kill(kill)],
    )  # fmt: skip
    try:
        trainer.fit(module, DataLoader(range(24), 4, shuffle=True))
    except Killed:
        assert kill is not None
    numbers = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return module, numbers, saves


@pytest.mark.parametrize("kill", [2, 6, 9])
def test_a_killed_run_resumes_with_what_hooks_have_changed(tmp_path, kill):
    whole, expected, _ = trained(tmp_path / "whole")
    first, _, saves = trained(tmp_path / "job", kill)
    assert "on_train_batch_end" not in vars(saves)
    rest, found, _ = trained(tmp_path / "job")
    assert found == expected
    assert rest.average == whole.average
    assert first.history + rest.history == whole.history  # what is no epoch's own is the script's, as in Lightning


def test_outputs_that_are_too_large_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_sagemaker.checkpoint.stored_values.LARGEST_STORED", 4)
    with pytest.warns(UserWarning, match=r"do not hold module\.outputs, which is larger") as found:
        trained(tmp_path)
    assert sum("do not hold" in str(one.message) for one in found) == 1


class Words(Module):
    """An epoch's objects, and texts in an array."""

    def on_train_epoch_start(self):
        super().on_train_epoch_start()
        self.objects, self.texts, self.made = [], np.array(["a"]), object()

    def training_step(self, batch, index):
        self.objects.append(object())
        return super().training_step(batch, index)


def test_outputs_that_are_no_plain_values_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.Module", Words)
    with pytest.warns(UserWarning, match=r"do not hold module\.") as found:
        trained(tmp_path)
    said = sorted(str(one.message)[:60] for one in found if "do not hold" in str(one.message))
    assert [words.split(",")[0].split()[-1] for words in said] == ["module.objects", "module.texts"]
