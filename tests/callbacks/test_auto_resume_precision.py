# SPDX-License-Identifier: Apache-2.0
"""A resumed run has the weights of its checkpoint, in each precision of a Trainer."""

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_sagemaker import AutoResume


class Module(BoringModel):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.1)


def _train(folder, precision, steps, callbacks):
    torch.manual_seed(1)
    module = Module()
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = Trainer(accelerator="cpu", precision=precision, max_steps=steps, callbacks=callbacks, **quiet)
    trainer.fit(module)
    if callbacks:
        trainer.save_checkpoint(folder / f"step={steps}.ckpt")
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("precision", ["64-true", "32-true", "bf16-true", "bf16-mixed"])
def test_weights_are_not_rounded(tmp_path, precision):
    alone = _train(tmp_path, precision, 6, [])
    _train(tmp_path, precision, 3, [AutoResume(tmp_path)])
    resumed = _train(tmp_path, precision, 6, [AutoResume(tmp_path)])
    for name, tensor in alone.items():
        assert torch.equal(resumed[name], tensor), name
