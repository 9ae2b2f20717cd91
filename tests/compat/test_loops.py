# SPDX-License-Identifier: Apache-2.0
"""Moments of a fit that Lightning has no hook for."""

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins import MixedPrecision, Precision

from lightning_sagemaker._compat.loops import announces_weight_update, events_of


class Watched(BoringModel):
    """Notes its hooks, and whether its weights have changed."""

    def __init__(self):
        super().__init__()
        self.notes = []

    def on_fit_start(self):
        events_of(self.trainer).before_weight_update.append(lambda: self.note("weights are next"))

    def note(self, name):
        self.notes.append((name, float(self.layer.weight.detach().sum())))

    def on_before_optimizer_step(self, optimizer):
        self.note("before the step")

    def on_train_batch_end(self, *_):
        self.note("end")


class OwnPrecision(Precision):
    """Steps in a way of its own."""

    def optimizer_step(self, optimizer, model, closure, **kwargs):
        closure()
        return optimizer.step(**kwargs)


def fit(tmp_path, plugin):
    module = Watched()
    trainer = Trainer(
        accelerator="cpu", max_steps=1, plugins=plugin, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module)
    return trainer, module.notes


def test_the_moment_before_weights_change_follows_the_hooks_that_see_gradients(tmp_path):
    for plugin in (Precision(), MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1.0))):
        trainer, notes = fit(tmp_path, plugin)
        assert announces_weight_update(trainer)
        assert [name for name, _ in notes] == ["before the step", "weights are next", "end"]
        assert notes[0][1] == notes[1][1] != notes[2][1]


def test_a_precision_of_the_scripts_own_may_not_have_it(tmp_path):
    trainer, notes = fit(tmp_path, OwnPrecision())
    assert not announces_weight_update(trainer)
    assert [name for name, _ in notes] == ["end"]
