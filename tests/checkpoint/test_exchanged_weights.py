# SPDX-License-Identifier: Apache-2.0
"""Weights that others take the place of, and what is kept of them; tests/chaos has whole runs."""

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from lightning_sagemaker._compat.loops import events_of
from lightning_sagemaker.checkpoint.exchanged_weights import ExchangedWeights, LoopWeights
from tests.chaos.averages import ExchangesValues


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 1)

    def training_step(self, batch, index):
        return self.net(batch).square().mean()

    def validation_step(self, batch, index):
        self.net(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Counts(Callback):
    """A hook that exchanges nothing."""

    count = 0

    def on_validation_start(self, trainer, module):
        self.count += 1


class Kept(Callback):
    """What is there in each batch of a validation: a sample to compare with, copies."""

    def __init__(self):
        self.weights, self.seen = None, []

    def setup(self, trainer, module, stage):
        self.weights = ExchangedWeights(trainer, events_of(trainer))

    def on_validation_batch_start(self, trainer, module, batch, index, loader=0):
        if not trainer.sanity_checking:
            own = self.weights._own
            self.seen.append((own is not None, own is not None and own.are_kept))


@pytest.mark.parametrize(
    ("callbacks", "seen", "next_time"),
    [([], (False, False), True), ([Counts], (True, False), False), ([ExchangesValues], (True, True), True)],
    ids=["no hook", "a hook", "averages"],
)
def test_weights_are_copied_only_where_hooks_exchange_them(tmp_path, callbacks, seen, next_time):
    kept, quiet = Kept(), dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, callbacks=[one() for one in callbacks] + [kept], default_root_dir=tmp_path,
        enable_model_summary=False, **quiet,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(torch.ones(2, 2)), DataLoader(torch.ones(1, 2)))
    assert kept.seen == [seen] * 2
    assert (kept.weights._own, kept.weights._keeps) == (None, next_time)


def test_a_loop_keeps_weights_once_it_has_been_seen_to_exchange_them():
    net, weights = nn.Linear(2, 1), LoopWeights()
    for possible in (False, True):
        weights.take({"net": net, "optimizer": torch.optim.SGD(net.parameters(), 0.1), "best": 1.0})
        assert weights.can_go_back()
        own = net.weight.detach().clone()
        with torch.no_grad():
            net.weight.zero_()
        assert weights.can_go_back() is possible
        if possible:
            weights.put_back()
        else:
            net.weight.data.copy_(own)
        assert torch.equal(net.weight, own)
        weights.forget()
    assert weights.can_go_back()
