# SPDX-License-Identifier: Apache-2.0
"""Lightning's finders train a while to try a value, in hooks, and go back: what follows is the training, resumed or not."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted
from tests.chaos.test_resumed import Numbers, StopAfter


class FindAgain(LearningRateFinder):
    """As in Lightning's documentation: at the beginning, and before the second epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            self.lr_find(trainer, pl_module)


class Module(LightningModule):
    """Notes the samples of its training, not of trials."""

    def __init__(self, size):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.lr, self.batch_size, self.steps = 0.01, size, []

    def train_dataloader(self):
        return DataLoader(Numbers(), self.batch_size, shuffle=True)

    def training_step(self, batch, index):
        loss = self.net(batch / 40).square().mean()
        if any(isinstance(one, (LearningRateFinder, BatchSizeFinder)) for one in self.trainer.callbacks):
            self.steps.append((self.global_step, batch.tolist(), loss.item(), self.optimizers().param_groups[0]["lr"]))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


def _train(finder, folder, stop=None, ours=True):
    seed_everything(3, verbose=False)
    module = Module(4)
    callbacks = [AutoResume(folder), SpotInterruption(folder), StopAfter(stop)] if ours else []
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(
        accelerator="cpu", callbacks=[*callbacks, finder()], max_epochs=3, default_root_dir=folder, **quiet
    )
    try:
        trainer.fit(module)
    except Interrupted:
        assert stop is not None
    return module.steps


FINDERS = {
    "learning rate": lambda: LearningRateFinder(num_training_steps=8, early_stop_threshold=None),
    "and again": lambda: FindAgain(num_training_steps=8, early_stop_threshold=None),
    "batch size": lambda: BatchSizeFinder("power", steps_per_trial=2, init_val=4, max_trials=2),
}


@pytest.mark.parametrize("name", FINDERS)
def test_a_trial_takes_nothing_from_the_training(tmp_path, name):
    alone = _train(FINDERS[name], tmp_path / "alone", ours=False)
    assert len(alone) == (15 if name == "batch size" else 30)
    assert _train(FINDERS[name], tmp_path / "ours") == alone


@pytest.mark.parametrize("name", FINDERS)
@pytest.mark.parametrize("stop", [3, 10, 14])
def test_a_run_with_a_trial_is_resumed(tmp_path, name, stop):
    """The trial is made again by the start that resumes; the rate is the checkpoint's."""
    finder = FINDERS[name]
    alone = _train(finder, tmp_path / "alone", ours=False)
    assert _train(finder, tmp_path / "ours", stop) + _train(finder, tmp_path / "ours") == alone
