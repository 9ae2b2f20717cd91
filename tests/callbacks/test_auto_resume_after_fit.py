# SPDX-License-Identifier: Apache-2.0
"""A script saves when its fit is over, and another run goes on from there: it is trained on what was left."""

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from lightning_sagemaker import AutoResume
from lightning_sagemaker.checkpoint.find import STATE
from tests.conftest import new_process

SIZE, BATCH, EPOCHS = 120, 4, 3


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.5)), []

    def training_step(self, batch, index):
        self.seen.append((batch[0].flatten().tolist(), torch.rand(1).item()))
        return self.layer(batch[0]).mean() * 1e-3

    def validation_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Stop(Callback):
    """As Lightning's ``Timer``."""

    def __init__(self, batches):
        self.batches = batches

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = trainer.fit_loop.epoch_loop.batch_progress.total.ready == self.batches


def _fit(folder, save=True, stop=None, ckpt_path=None, callbacks=(), **options):
    new_process()
    torch.manual_seed(3)
    model = Model()
    data = TensorDataset(torch.arange(float(SIZE))[:, None])
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=save == "callback", default_root_dir=folder,
        callbacks=[AutoResume(folder), *([ModelCheckpoint(folder)] if save == "callback" else []), Stop(stop), *callbacks],
        **({"max_epochs": EPOCHS} | options),
    )  # fmt: skip
    trainer.fit(model, DataLoader(data, BATCH, shuffle=True), ckpt_path=ckpt_path)
    if save == "validated":
        trainer.validate(model, DataLoader(data, BATCH), verbose=False)
    if save and save != "callback":
        trainer.save_checkpoint(folder / f"step={trainer.global_step}.ckpt")
    return model, trainer


@pytest.mark.parametrize("save", [True, "validated", "callback"])
@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 13},  # within an epoch
        {"max_steps": 47},
        {"max_steps": 60},  # at an epoch's end
        {"max_epochs": 2},
        {"max_steps": 11, "accumulate_grad_batches": 3},
        {"max_epochs": 1, "accumulate_grad_batches": 4},  # which do not divide the epoch
    ],
    ids=str,
)
def test_what_follows_is_that_of_a_run_without_an_end(tmp_path, options, save):
    accumulated = {name: value for name, value in options.items() if name.startswith("accumulate")}
    expected, _ = _fit(tmp_path / "whole", False, **accumulated)
    first, _ = _fit(tmp_path / "job", save, **options)
    assert 0 < len(first.seen) < len(expected.seen)
    rest, _ = _fit(tmp_path / "job", False, **accumulated)
    assert first.seen + rest.seen == expected.seen
    assert [*map(torch.Tensor.tolist, rest.parameters())] == [*map(torch.Tensor.tolist, expected.parameters())]


@pytest.mark.parametrize("save", [True, "callback"])
@pytest.mark.parametrize("stop", [47, 60])  # within an epoch, and at its end
def test_a_run_that_a_callback_has_stopped_trains_on_if_its_checkpoint_is_named(tmp_path, stop, save, caplog):
    caplog.set_level("INFO")
    expected, _ = _fit(tmp_path / "whole", False)
    first, _ = _fit(tmp_path / "job", save, stop)
    assert len(first.seen) == stop
    again, _ = _fit(tmp_path / "job", False)
    assert not again.seen
    assert "had stopped training when the checkpoint was saved" in caplog.text
    (saved,) = (tmp_path / "job").glob(f"*step={stop}.ckpt")
    rest, _ = _fit(tmp_path / "job", False, ckpt_path=saved)
    assert first.seen + rest.seen == expected.seen


class StopAtStart(Callback):
    def __init__(self, hook):
        setattr(self, hook, lambda trainer, _: setattr(trainer, "should_stop", True))


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_start"])
def test_a_stop_that_a_hook_of_the_start_requests_stays(tmp_path, hook):
    _fit(tmp_path, max_steps=13)
    stopped, _ = _fit(tmp_path, False, callbacks=[StopAtStart(hook)])
    assert not stopped.seen


class Failing(Model):
    def training_step(self, batch, index):
        raise ArithmeticError("at once")


def test_the_end_is_not_that_of_a_later_fit(tmp_path):
    """One that failed: what is saved then is Lightning's state alone, as the place is not known."""
    _, trainer = _fit(tmp_path, max_steps=13)
    trainer.fit_loop.epoch_loop.max_steps = 20
    with pytest.raises(ArithmeticError):
        trainer.fit(Failing(), DataLoader(TensorDataset(torch.arange(float(SIZE))[:, None]), BATCH, shuffle=True))
    trainer.save_checkpoint(tmp_path / "failed.ckpt")
    assert STATE not in torch.load(tmp_path / "failed.ckpt", weights_only=False)
