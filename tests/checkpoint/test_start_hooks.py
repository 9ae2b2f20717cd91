# SPDX-License-Identifier: Apache-2.0
"""Hooks of a start, and what a checkpoint has; tests/chaos/test_exchanged_weights.py has whole runs."""

import contextlib

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted
from lightning_sagemaker.checkpoint import own_weights
from lightning_sagemaker.checkpoint.start_hooks import _take_state
from tests.callbacks.test_interruption import SignalAt
from tests.conftest import new_process


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
        self.begins = []

    def on_train_start(self):
        torch.nn.init.ones_(self.net.weight)
        self.optimizers().param_groups[0]["lr"] = 0.5

    def on_train_batch_start(self, batch, index):
        self.begins.append((self.global_step, self.net.weight.tolist(), self.optimizers().param_groups[0]["lr"]))

    def training_step(self, batch, index):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def _fit(folder, epochs, path=None):
    new_process()
    seed_everything(1, verbose=False)
    module, quiet = Module(), dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    callbacks = [AutoResume(folder), ModelCheckpoint(folder, save_last=True)]
    trainer = Trainer(accelerator="cpu", max_epochs=epochs, callbacks=callbacks, default_root_dir=folder, **quiet)
    trainer.fit(module, DataLoader(torch.ones(3, 2)), ckpt_path=path)
    return module.begins


def test_a_run_that_is_found_goes_on_with_its_own(tmp_path):
    alone = _fit(tmp_path / "alone", 2)
    assert alone[0] == (0, [[1.0, 1.0]], 0.5)
    assert _fit(tmp_path / "ours", 1) + _fit(tmp_path / "ours", 2) == alone


def test_a_script_that_names_its_checkpoint_may_change_what_it_begins_with(tmp_path):
    """As under Lightning: a training that goes on with another learning rate, or a new head."""
    alone = _fit(tmp_path / "alone", 2)
    _fit(tmp_path / "first", 1)
    later = _fit(tmp_path / "second", 2, str(tmp_path / "first" / "last.ckpt"))
    assert [step for step, *_ in later] == [step for step, *_ in alone[3:]]
    assert later[0] == (3, [[1.0, 1.0]], 0.5) != alone[3]


def test_weights_of_which_there_is_no_copy_are_said_to_have_changed(tmp_path, monkeypatch, recwarn):
    """As sharded ones."""
    _fit(tmp_path, 1)
    monkeypatch.setattr(own_weights, "_is_entire", lambda _: False)
    begins = _fit(tmp_path, 2)
    assert begins[0] == (3, [[1.0, 1.0]], 0.25)
    assert sum("has changed the weights" in str(one.message) for one in recwarn) == 1


class Switches(Module):
    """Trains from its second epoch on with another optimizer."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def on_train_start(self):
        """Changes nothing."""

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.trainer.strategy.optimizers = [self.make(self.parameters())]

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.1)


def _switched(folder, make, stop=None):
    seed_everything(1, verbose=False)
    module, quiet = Switches(make), dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    callbacks = [AutoResume(folder), SpotInterruption(folder, overhead=1.0), SignalAt(stop)]
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, callbacks=callbacks, enable_checkpointing=False, default_root_dir=folder, **quiet
    )  # fmt: skip
    with contextlib.suppress(Interrupted):
        trainer.fit(module, DataLoader(torch.ones(4, 2)))
    return module.begins


@pytest.mark.parametrize("make", [lambda p: torch.optim.AdamW(p, 0.01), lambda p: torch.optim.Adam(p, 0.02)])
def test_an_optimizer_that_an_epochs_hook_makes_has_its_state(tmp_path, make):
    alone = _switched(tmp_path / "alone", make)
    assert len(alone) == 8
    before, after = _switched(tmp_path / "parts", make, 4), _switched(tmp_path / "parts", make)
    assert before + after == alone


def test_an_optimizer_that_does_not_take_the_state_is_named(recwarn):
    weight = torch.nn.Parameter(torch.ones(2))
    loaded = torch.optim.SGD([weight], 0.1, momentum=0.9)
    weight.sum().backward()
    loaded.step()
    _take_state(torch.optim.Adam([weight]), loaded)
    assert "replaced an optimizer by Adam, which does not take" in str(recwarn.pop(UserWarning).message)
