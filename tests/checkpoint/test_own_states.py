# SPDX-License-Identifier: Apache-2.0
"""Objects with a state_dict that a script keeps in attributes."""

import contextlib

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted
from tests.callbacks.test_interruption import SignalAt


class Average:
    def __init__(self):
        self.value, self.lock = torch.zeros(()), object()

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Functions(Average):
    def state_dict(self):
        return {"how": len}


class Module(LightningModule):
    """Steps a schedule itself; the other one is Lightning's."""

    def __init__(self):
        super().__init__()
        self.layer, self.found, self.averages = torch.nn.Linear(4, 1), [], {"loss": Average()}

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        self.averages["loss"].value = 0.9 * self.averages["loss"].value + loss.detach()
        return loss

    def on_train_batch_end(self, *_):
        self.own.step()
        rates = [group["lr"] for group in self.optimizers().param_groups]
        self.found.append((self.global_step, rates, float(self.averages["loss"].value)))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        self.own = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        self.lightnings = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return [optimizer], [self.lightnings]


def train(folder, stop=None, **attributes):
    seed_everything(0, verbose=False)
    data = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    callbacks = [AutoResume(folder), SpotInterruption(folder, overhead=1.0), SignalAt(stop)]
    trainer = Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=callbacks, default_root_dir=folder,
    )  # fmt: skip
    module = Module()
    vars(module).update(attributes)
    with contextlib.suppress(Interrupted):
        trainer.fit(module, DataLoader(data, 4, shuffle=True))
    return module.found


@pytest.mark.parametrize("stop", [2, 7])
def test_they_go_on(tmp_path, stop):
    whole = train(tmp_path / "whole")
    before, after = train(tmp_path / "parts", stop), train(tmp_path / "parts")
    assert [*before, *after] == whole
    (path,) = (tmp_path / "parts").glob("auto-step=*.ckpt")
    entries = torch.load(path, weights_only=True)["lightning_sagemaker"]
    assert entries["ranks"][0]["attributes"]["state_dicts"].keys() == {"module.own", "module.averages.loss"}


def test_one_that_cannot_be_kept_is_said(tmp_path):
    with pytest.warns(
        UserWarning, match=r"do not hold module\.other, which has a state_dict with more than plain values"
    ):
        train(tmp_path, 2, other=Functions())


class Fails(Average):
    def state_dict(self):
        raise RuntimeError("before the first step")


def test_one_whose_state_fails_is_said(tmp_path):
    with pytest.warns(UserWarning, match=r"module\.other, which has a state_dict that fails \(RuntimeError: before"):
        train(tmp_path, 2, other=Fails())


def test_a_class_is_no_object(tmp_path, recwarn):
    whole = train(tmp_path / "whole")
    classes = {"optimizer_class": torch.optim.Adam, "schedules": [torch.optim.lr_scheduler.StepLR, Average]}
    before, after = train(tmp_path, 2, **classes), train(tmp_path, **classes)
    assert [*before, *after] == whole
    assert not [one for one in recwarn if "do not hold" in str(one.message)]
