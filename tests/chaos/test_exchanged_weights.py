# SPDX-License-Identifier: Apache-2.0
"""Averaged weights as people write them, in a run that is stopped within a validation: compared with stock Lightning."""

import os
import signal

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from pytorch_optimizer import ScheduleFreeAdamW
from torch.utils.data import DataLoader, TensorDataset

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted
from tests.chaos.averages import DECAY, ExchangesPointers, ExchangesValues, KeepsThemInPlace, LoadsAverages

BATCHES, EPOCHS = 6, 4


class Module(LightningModule):
    """Two layers with dropout."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        self.dropout = torch.nn.Dropout(0.3)
        self.losses, self.validations = [], []

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.net(self.dropout(batch[0])), batch[1])
        self.losses.append((self.global_step, loss.item()))
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.05)


class Average(torch.nn.Module):
    """Weights that are averaged, in buffers, and whether they are here or in the module."""

    def __init__(self, module):
        super().__init__()
        self.is_here = True
        for number, parameter in enumerate(module.parameters()):
            self.register_buffer(f"weight_{number}", parameter.detach().clone())

    def update(self, module):
        assert self.is_here
        for mean, parameter in zip(self.buffers(), module.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 1 - DECAY)

    def exchange(self, module):
        for mean, parameter in zip(self.buffers(), module.parameters(), strict=True):
            own = mean.clone()
            mean.copy_(parameter)
            parameter.copy_(own)
        self.is_here = not self.is_here

    def get_extra_state(self):
        return self.is_here

    def set_extra_state(self, state):
        self.is_here = state
        assert self.is_here, "saved while the averages were in the module"


class Exchanges(Module):
    """Exchanges its weights with their averages for a validation, in place."""

    def __init__(self):
        super().__init__()
        self.average = Average(self.net)

    def on_train_batch_end(self, *_):
        self.average.update(self.net)

    def on_validation_start(self):
        with torch.no_grad():
            self.average.exchange(self.net)

    def on_validation_end(self):
        with torch.no_grad():
            self.average.exchange(self.net)


class CopiesData(Module):
    """Stores its weights, takes the averages, and restores them, by ``.data``, which no version counter counts."""

    def __init__(self):
        super().__init__()
        self.means = [parameter.detach().clone() for parameter in self.parameters()]

    def on_train_batch_end(self, *_):
        for mean, parameter in zip(self.means, self.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 1 - DECAY)

    def on_validation_epoch_start(self):
        self.stored = [parameter.detach().clone() for parameter in self.parameters()]
        for mean, parameter in zip(self.means, self.parameters(), strict=True):
            parameter.data.copy_(mean.data)

    def on_validation_epoch_end(self):
        for own, parameter in zip(self.stored, self.parameters(), strict=True):
            parameter.data.copy_(own.data)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["means"] = self.means

    def on_load_checkpoint(self, checkpoint):
        self.means = checkpoint["means"]


class ScheduleFree(Module):
    """An optimizer that has averages, for evaluations."""

    def configure_optimizers(self):
        return ScheduleFreeAdamW(self.parameters(), 0.05)

    def on_train_start(self):
        self.optimizers().optimizer.train()

    def on_validation_model_eval(self):
        super().on_validation_model_eval()
        self.optimizers().optimizer.eval()

    def on_validation_model_train(self):
        super().on_validation_model_train()
        self.optimizers().optimizer.train()


class Initializes(Module):
    """Draws its weights in a hook, as rectools does."""

    def on_train_start(self):
        torch.manual_seed(3)
        torch.nn.init.normal_(self.net[0].weight)


class Stop(Callback):
    """A signal within a validation, or before its first batch; or after a step."""

    def __init__(self, validation=0, batch=0, step=None):
        self.validation, self.batch, self.step, self.count = validation, batch, step, 0

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_validation_start(self, trainer, module):
        self.count += not trainer.sanity_checking
        self._strike(trainer, 0)

    def on_validation_batch_start(self, trainer, module, batch, index, loader=0):
        self._strike(trainer, index + 1)

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            module.validations.append((trainer.global_step, float(trainer.callback_metrics["val_loss"])))

    def _strike(self, trainer, batch):
        if (self.count, batch) == (self.validation, self.batch) and not trainer.sanity_checking:
            os.kill(os.getpid(), signal.SIGTERM)


KINDS = {
    "exchanges": (Exchanges, list),
    "copies data": (CopiesData, list),
    "loads averages": (Module, lambda: [LoadsAverages()]),
    "exchanges values": (Module, lambda: [ExchangesValues()]),
    "exchanges pointers": (Module, lambda: [ExchangesPointers()]),
    "schedule-free": (ScheduleFree, list),
    "keeps them in place": (Module, lambda: [KeepsThemInPlace()]),
    "initializes": (Initializes, list),
}


def _run(kind, folder=None, stop=None, saves=(), **options):
    seed_everything(5, verbose=False)
    x = torch.randn(BATCHES * 4, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    make, more = KINDS[kind]
    module = make()
    own = [AutoResume(folder), SpotInterruption(folder, overhead=1.0)] if folder is not None else []
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(
        accelerator="cpu", max_epochs=EPOCHS, val_check_interval=0.5, **{**quiet, **options},
        callbacks=[*own, *more(), *saves, Stop(*stop or ())],
    )  # fmt: skip
    try:
        trainer.fit(module, DataLoader(data, 4, shuffle=True), DataLoader(data, 4))
    except Interrupted:
        assert stop is not None
    return module.losses, module.validations, dict(module.state_dict())


@pytest.mark.parametrize("sanity", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_stopped_in_a_validation_is_resumed_with_its_own_weights(tmp_path, kind, sanity):
    losses, validations, weights = _run(kind, num_sanity_val_steps=sanity)
    parts = [_run(kind, tmp_path, stop, num_sanity_val_steps=sanity) for stop in ((1, 1), (2, 0), (2, 3), None)]
    assert [loss for part in parts for loss in part[0]] == losses
    assert [one for part in parts for one in part[1]] == validations
    assert all(torch.equal(value, parts[-1][2][name]) for name, value in weights.items() if torch.is_tensor(value))


@pytest.mark.parametrize("kind", ["keeps them in place", "initializes"])
@pytest.mark.parametrize("steps", [(2, 3), (8, 11)], ids=str)
def test_a_hook_of_the_start_does_not_overwrite_what_was_loaded(tmp_path, kind, steps):
    """In the midst of an epoch, before a validation and at an epoch's end."""
    losses, validations, weights = _run(kind)
    parts = [_run(kind, tmp_path, (0, 0, step)) for step in steps] + [_run(kind, tmp_path)]
    assert [loss for part in parts for loss in part[0]] == losses
    assert [one for part in parts for one in part[1]] == validations
    assert all(torch.equal(value, parts[-1][2][name]) for name, value in weights.items())


@pytest.mark.parametrize(("kind", "warns"), [("exchanges", True), ("copies data", False), ("loads averages", False)])
def test_a_checkpoint_that_lightning_saves_before_the_weights_are_back_is_named(tmp_path, recwarn, kind, warns):
    """The module's hook of a validation's end is called after ModelCheckpoint's; a callback's is called before."""
    saves = ModelCheckpoint(tmp_path / "own", monitor="val_loss")
    _run(kind, tmp_path, saves=[saves], enable_checkpointing=True)
    said = [str(one.message) for one in recwarn if "put the weights back" in str(one.message)]
    assert len(said) == warns
