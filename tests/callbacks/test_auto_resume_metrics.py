# SPDX-License-Identifier: Apache-2.0
"""What is summed up over an epoch is not lost when training stops in its midst."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
import torch
import torchmetrics
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume, MetricLogger, ResumableLoader, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted
from tests.callbacks.test_interruption import SignalAt
from tests.conftest import fork_ranks


class Model(LightningModule):
    """A mean by Lightning, one by torchmetrics, a list of all values, and a metric that Lightning resets itself."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.mean = torchmetrics.MeanMetric()
        self.all = torchmetrics.CatMetric()
        self.logged = torchmetrics.MeanMetric()
        self.found = []

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        self.log("highest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.mean.update(loss.detach())
        self.all.update(loss.detach())
        self.logged.update(loss.detach())
        self.log("logged", self.logged, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        self.found.append((float(self.mean.compute()), self.all.compute().tolist()))
        self.mean.reset()
        self.all.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Rows(MetricLogger):
    """Keeps the rows of whole epochs."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        if "loss" in metrics:
            self.rows.append({**metrics, "step": step})


def train(folder, stop=None):
    seed_everything(0, verbose=False)
    data = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    logger = Rows()
    spot = SpotInterruption(folder, overhead=1.0)
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, logger=logger, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[AutoResume(folder), spot, SignalAt(stop)], default_root_dir=folder,
    )  # fmt: skip
    module = Model()
    try:
        trainer.fit(module, ResumableLoader(data, trainer, 4))
    except Interrupted:
        assert stop is not None
    return module.found, logger.rows


@pytest.mark.parametrize("stop", [3, 6, 8, 11])
def test_epochs_are_whole(tmp_path, stop):
    whole, logged = train(tmp_path / "whole")
    before, before_logged = train(tmp_path / "parts", stop)
    after, after_logged = train(tmp_path / "parts")
    assert len(before) + len(after) == 2
    assert [*before, *after] == whole
    assert [*before_logged, *after_logged] == logged


class Validated(Model):
    """Notes what is done at the end of an epoch, in which order, and with how many batches."""

    def __init__(self):
        super().__init__()
        self.events = []

    def on_validation_epoch_start(self):
        self.values = []

    def validation_step(self, batch, index):
        self.values.append(self.layer(batch).square().mean())
        self.log("val_loss", self.values[-1])

    def on_validation_epoch_end(self):
        self.events.append(("validation", self.trainer.global_step, len(self.values), float(sum(self.values))))

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        self.events.append(("end", self.trainer.global_step, self.all._update_count))


class SignalInValidation(Callback):
    def __init__(self, epoch, batch=1):
        self.epoch, self.batch = epoch, batch

    def on_validation_batch_start(self, trainer, module, batch, index, loader=0):
        if trainer.current_epoch == self.epoch and index == self.batch:
            os.kill(os.getpid(), signal.SIGTERM)


class Plateau(Validated):
    """Its learning rate falls after each validation."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.99, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}

    def on_train_epoch_start(self):
        self.events.append(("rate", self.optimizers().param_groups[0]["lr"]))


def train_validated(folder, *callbacks, spot=True, checkpoint=None, kind=Validated, **options):
    """What the hooks saw, and the rows of the logger."""
    seed_everything(0, verbose=False)
    data = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    logger, module = Rows(), kind()
    callbacks = [AutoResume(folder, search=spot), *callbacks]
    trainer = Trainer(
        accelerator="cpu", logger=logger, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks), num_sanity_val_steps=0,
        callbacks=[*callbacks, SpotInterruption(folder, overhead=1.0)] if spot else callbacks,
        default_root_dir=folder, **{"max_epochs": 2, **options},
    )  # fmt: skip
    with contextlib.suppress(Interrupted):
        trainer.fit(module, ResumableLoader(data, trainer, 4), DataLoader(data, batch_size=4), ckpt_path=checkpoint)
    return module.events, logger.rows


def test_a_validation_at_the_end_of_an_epoch_is_done_again(tmp_path):
    whole, rows = train_validated(tmp_path / "whole")
    assert train_validated(tmp_path / "parts", SignalInValidation(0)) == ([], [])
    after, after_rows = train_validated(tmp_path / "parts")
    assert after == whole
    assert after_rows == rows
    assert [e[:3] for e in whole] == [("validation", 8, 8), ("end", 8, 0), ("validation", 16, 8), ("end", 16, 0)]


def test_a_checkpoint_of_a_validation_that_was_done_again_has_the_epochs_means(tmp_path):
    whole, rows = train_validated(tmp_path / "whole")
    train_validated(tmp_path / "parts", SignalInValidation(0))
    saves = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, monitor="val_loss", save_on_train_epoch_end=False)
    train_validated(tmp_path / "parts", saves)
    after, after_rows = train_validated(tmp_path / "after", spot=False, checkpoint=tmp_path / "step=8.ckpt")
    assert after == whole[1:]
    assert after_rows == rows


def test_after_a_validation_that_is_done_again_the_learning_rate_follows_it(tmp_path):
    whole, rows = train_validated(tmp_path / "whole", kind=Plateau, max_epochs=3)
    before, _ = train_validated(tmp_path / "parts", SignalInValidation(1), kind=Plateau, max_epochs=3)
    after, after_rows = train_validated(tmp_path / "parts", kind=Plateau, max_epochs=3)
    assert [event[1] for event in whole if event[0] == "rate"] == [0.1, 0.1, 0.05]
    again, *after = after
    assert again == ("rate", 0.1)  # the hook of the epoch's beginning is called once more
    assert [*before, *after] == whole
    assert after_rows == rows[1:]


@pytest.mark.parametrize("stop", [SignalAt(2), SignalAt(3), SignalAt(4), SignalInValidation(0, 0)])
def test_a_validation_within_an_epoch_is_done_once(stop, tmp_path):
    whole, rows = train_validated(tmp_path / "whole", val_check_interval=3)
    assert [event[1] for event in whole if event[0] == "validation"] == [3, 6, 11, 14]
    before, before_rows = train_validated(tmp_path / "parts", stop, val_check_interval=3)
    assert len(before) < len(whole)
    after, after_rows = train_validated(tmp_path / "parts", val_check_interval=3)
    assert [*before, *after] == whole
    assert [*before_rows, *after_rows] == rows


@pytest.mark.parametrize(
    ("when", "places"),
    [
        ({"every_n_train_steps": 3}, {3: (4, 2), 6: (4, 2), 9: (2, 1), 12: (2, 1), 15: (2, 1)}),
        ({"every_n_train_steps": 8}, {8: (4, 2), 16: (2, 1)}),
        ({"save_on_train_epoch_end": True}, {8: (2, 2), 16: (0, 1)}),
        ({"monitor": "val_loss"}, {8: (2, 2), 16: (0, 1)}),
        ({"monitor": "val_loss", "save_on_train_epoch_end": False}, {8: (3, 2), 16: (1, 1)}),
    ],
    ids=["in an epoch", "last batch", "epoch end", "monitored", "validation end"],
)
def test_epochs_after_a_checkpoint_of_lightnings_are_whole(when, places, tmp_path):
    """``places`` are the steps saved, and how many events and rows come after each in a run that goes on."""
    saves = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **when)
    whole, rows = train_validated(tmp_path / "whole", saves, spot=False)
    assert {path.name for path in tmp_path.glob("*.ckpt")} == {f"step={step}.ckpt" for step in places}
    for step, (events_left, rows_left) in places.items():
        after, after_rows = train_validated(tmp_path / "after", spot=False, checkpoint=tmp_path / f"step={step}.ckpt")
        assert after == whole[len(whole) - events_left :], step
        assert after_rows == rows[len(rows) - rows_left :], step


class WithError(LightningModule):
    """Notes what each validation's metric said."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.error = torchmetrics.MeanMetric()

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, index):
        self.error(self.layer(batch).square().mean())
        self.log("error", self.error)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Validations(Callback):
    def __init__(self, dies_at):
        self.dies_at, self.found = dies_at, []

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.found.append((trainer.global_step, float(trainer.callback_metrics["error"])))

    def on_train_batch_start(self, trainer, module, batch, index):
        if trainer.global_step == self.dies_at:
            raise RuntimeError("dies")


@pytest.mark.parametrize("sanity", [0, 2])
def test_a_validation_does_not_go_on_from_the_one_before(tmp_path, sanity):
    """``ModelCheckpoint`` writes while the metrics of a validation are not yet reset."""

    def validations(folder, dies_at=None):
        seed_everything(0, verbose=False)
        data = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
        notes = Validations(dies_at)
        trainer = Trainer(
            accelerator="cpu", max_epochs=2, val_check_interval=0.5, num_sanity_val_steps=sanity, logger=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
            callbacks=[AutoResume(folder), ModelCheckpoint(folder, monitor="error", save_top_k=-1), notes],
        )  # fmt: skip
        with contextlib.suppress(RuntimeError):
            trainer.fit(WithError(), DataLoader(data, 4), DataLoader(data, 4))
        return notes.found

    alone = validations(tmp_path / "alone")
    assert len(alone) == 4
    assert validations(tmp_path / "ours", dies_at=5) + validations(tmp_path / "ours") == alone


def test_a_schedule_of_each_ranks_own_metric_goes_on_on_each_rank(tmp_path):
    """Rank zero writes the checkpoint; Lightning's part of it has its schedule only."""
    fork_ranks(Path(__file__).parent / "plateau_worker.py", tmp_path, processes=2)
