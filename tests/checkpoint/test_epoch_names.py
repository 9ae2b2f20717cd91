# SPDX-License-Identifier: Apache-2.0
"""What the hooks of an epoch's start and end set or empty."""

from lightning.pytorch import Callback, LightningModule

from lightning_sagemaker.checkpoint.epoch_names import names_reset


class Module(LightningModule):
    def on_train_epoch_start(self):
        self.began, self.count = 1.0, 0

    def training_step(self, batch, index):
        self.steps += 1

    def on_train_epoch_end(self):
        self.log("mean", sum(self.outputs) / len(self.outputs))
        self.history.append(len(self.outputs))
        self.outputs.clear()
        self.sums["loss"] = 0.0
        del self.kinds[:]
        self.body.calls = 0
        self.shadow.zero_()
        self._finish()

    def _finish(self):
        for meters in [self.by_name]:
            meters.clear()
        self.ids = {one: [] for one in self.names}
        self.total *= 0
        for one in self.meters.values():
            one.reset()


class Derived(Module):
    def on_train_epoch_start(self):
        super().on_train_epoch_start()


class Own(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.predictions.clear()
        self.rows.append(1)


def test_what_an_epochs_hooks_set_or_empty_is_its_own():
    assert names_reset(Module) == {
        "began", "count", "outputs", "sums", "kinds", "calls", "shadow", "ids", "total", "meters", "by_name",
    }  # fmt: skip
    assert names_reset(Own) == {"predictions"}
    assert names_reset(LightningModule) == names_reset(Callback) == set()


def test_a_classs_hooks_may_call_those_it_has_from_another():
    assert names_reset(Derived) == names_reset(Module)
