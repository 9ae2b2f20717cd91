# SPDX-License-Identifier: Apache-2.0
"""Scripts have callbacks among a module's hyperparameters, which every checkpoint holds."""

import contextlib
import copy
import pickle
from datetime import timedelta

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume, Heartbeat, MemoryCheckpoint, MetricLogger, SpotInterruption
from lightning_sagemaker.callbacks import DataWait, Throughput
from lightning_sagemaker.callbacks.interruption import Interrupted
from tests.callbacks.test_interruption import SignalAt


class Own(AutoResume):
    """A subclass of the script's."""

    def __init__(self, folder, *, name="a"):
        super().__init__(folder, search=False)
        self.name = name


class Model(LightningModule):
    def __init__(self, callbacks, **others):
        super().__init__()
        self.save_hyperparameters()
        self.layer, self.losses = torch.nn.Linear(1, 1), []

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        self.losses.append(float(loss))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def train_dataloader(self):
        return DataLoader(torch.arange(16.0)[:, None] / 16, 2, shuffle=True)


class Copies(Callback):
    """Of the other callbacks, in the midst of a fit."""

    def on_train_batch_end(self, trainer, *_):
        found = [one for one in trainer.callbacks if one is not self]
        self.pickled, self.copied = pickle.loads(pickle.dumps(found)), copy.deepcopy(found)


def train(folder, given, among, stop=None, **options):
    """Losses of one start, with callbacks of which some are hyperparameters."""
    seed_everything(1, verbose=False)
    model = Model(among)
    trainer = Trainer(
        accelerator="cpu", logger=False, callbacks=[*given, SignalAt(stop)], enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in given),
        default_root_dir=folder, **{"max_epochs": 2, **options},
    )  # fmt: skip
    with contextlib.suppress(Interrupted):
        trainer.fit(model)
    return model.losses


@pytest.mark.parametrize("kinds", ["ours", "lightning", "all"])
def test_a_run_with_callbacks_among_its_hyperparameters_is_resumed(tmp_path, kinds):
    def started(name, stop=None):
        folder = tmp_path / name
        ours = [AutoResume(folder), SpotInterruption(folder, overhead=1.0)]
        saves = [ModelCheckpoint(folder / "kept", every_n_train_steps=3), EarlyStopping("loss", patience=9)]
        among = {"ours": ours, "lightning": saves, "all": ours + saves}[kinds]
        return train(folder, [*ours, *saves], among, stop)

    whole = started("whole")
    assert len(whole) == 16
    assert started("parts", 5) + started("parts") == whole


def test_copies_in_a_fit_are_as_made(tmp_path):
    copies = Copies()
    made = [
        AutoResume(tmp_path, search=False), SpotInterruption(tmp_path, timedelta(seconds=7), keep=4), DataWait(),
        Heartbeat(1.5, patience=60.0), Throughput(None), ModelCheckpoint(tmp_path / "kept"),
    ]  # fmt: skip
    train(tmp_path, [*made, copies], None, max_epochs=1, limit_train_batches=3)
    for found in (copies.pickled, copies.copied):
        by_kind = {type(one): one for one in found}
        assert set(by_kind) >= {type(one) for one in made}
        resume, spot, heart = (by_kind[kind] for kind in (AutoResume, SpotInterruption, Heartbeat))
        assert (resume.dirpath, resume._search, resume._state, resume._events) == (tmp_path, False, None, None)
        assert (spot.dirpath, spot._save_every, spot._keep, spot._events) == (tmp_path, 7.0, 4, None)
        assert (heart._every, heart._patience, heart._threads) == (1.5, 60.0, [])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_has_the_arguments(copied, tmp_path):
    own = copied(copied(Own(tmp_path, name="b")))
    assert (own.name, own.dirpath, own._search) == ("b", tmp_path, False)
    assert copied(MemoryCheckpoint(7))._every_n_steps == 7
    assert isinstance(copied(MetricLogger()), MetricLogger)
