# SPDX-License-Identifier: Apache-2.0
"""A resumed run has the weights of its checkpoint, in each precision of a Trainer."""

import contextlib

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_sagemaker import AutoResume

STEPS = 6


class Module(BoringModel):
    def loss(self, preds, labels=None):
        return preds.square().mean()  # torch 2.5 has no mse_loss of bfloat16 on CPUs

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.1)


class Dies(Callback):
    """After a checkpoint."""

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == STEPS // 2:
            trainer.save_checkpoint(f"{trainer.default_root_dir}/saved.ckpt")
            raise ConnectionError


def _train(folder, precision, callbacks):
    torch.manual_seed(1)
    module, starts = Module(), []
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = Trainer(
        accelerator="cpu", precision=precision, max_steps=STEPS, callbacks=callbacks, default_root_dir=folder, **quiet
    )
    module.on_train_start = lambda: starts.append(trainer.global_step)
    with contextlib.suppress(ConnectionError):
        trainer.fit(module)
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}, starts


@pytest.mark.parametrize("precision", ["64-true", "32-true", "bf16-true", "bf16-mixed"])
def test_weights_are_not_rounded(tmp_path, precision):
    alone, _ = _train(tmp_path, precision, [])
    _train(tmp_path, precision, [AutoResume(tmp_path), Dies()])
    resumed, starts = _train(tmp_path, precision, [AutoResume(tmp_path)])
    assert starts == [STEPS // 2]
    for name, tensor in alone.items():
        assert torch.equal(resumed[name], tensor), name
