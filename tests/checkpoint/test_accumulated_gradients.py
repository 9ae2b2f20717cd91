# SPDX-License-Identifier: Apache-2.0
"""Gradients that a script accumulates itself are in checkpoints; those that it has used are not."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel, ManualOptimBoringModel

from lightning_sagemaker import AutoResume
from lightning_sagemaker.checkpoint.find import STATE
from tests.conftest import fork_ranks


def test_ranks_go_on_within_accumulated_gradients(tmp_path):
    fork_ranks(Path(__file__).parent / "accumulated_worker.py", tmp_path, processes=2)


class Manual(ManualOptimBoringModel):
    """Its gradients are left as they are after a step, or set to zero; or there is none."""

    def __init__(self, order):
        super().__init__()
        self.order = order

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        for does in self.order:
            if does == "backward":
                self.manual_backward(self.step(batch))
            elif does == "zero":
                optimizer.zero_grad(set_to_none=False)
            else:
                getattr(optimizer, does)()


class Save(Callback):
    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, pl_module, *_):
        trainer.save_checkpoint(self.path)
        pl_module.then = {name: one.grad.tolist() for name, one in pl_module.named_parameters() if one.grad is not None}


def _saved(module, path):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    callbacks = [AutoResume(path.parent, search=False), Save(path)]
    trainer = Trainer(accelerator="cpu", max_epochs=1, limit_train_batches=2, callbacks=callbacks, **quiet)
    trainer.fit(module)
    return torch.load(path, weights_only=True)[STATE]["gradients"]


@pytest.mark.parametrize(
    "order", [("zero_grad", "backward", "step"), ("backward", "step", "zero_grad"), ("backward", "step", "zero")]
)
def test_used_ones_take_no_space(tmp_path, order):
    assert _saved(Manual(order), tmp_path / "saved.ckpt") == {}


def test_accumulated_ones_are_there(tmp_path):
    module = Manual(("backward",))
    saved = _saved(module, tmp_path / "saved.ckpt")
    assert {name: one.tolist() for name, one in saved.items()} == module.then != {}


def test_automatic_optimization_has_none(tmp_path):
    assert _saved(BoringModel(), tmp_path / "saved.ckpt") == {}
