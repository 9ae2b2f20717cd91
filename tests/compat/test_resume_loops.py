# SPDX-License-Identifier: Apache-2.0
"""The loops go on from where a checkpoint was made."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume
from tests.conftest import new_process

BATCHES, EPOCHS = 5, 3


class Failing(LightningModule):
    def __init__(self, fails_at=None, hook="training_step"):
        super().__init__()
        self.layer, self.fails_at, self.hook, self.seen = torch.nn.Linear(1, 1), fails_at, hook, []

    def _fail(self, hook, place):
        if (hook, place) == (self.hook, self.fails_at):
            raise ArithmeticError("in this batch")

    def on_before_batch_transfer(self, batch, _):
        self._fail("transfer", (self.current_epoch, self.trainer.fit_loop.epoch_loop.batch_progress.current.ready))
        return batch

    def training_step(self, batch, index):
        place = self.current_epoch, index
        self._fail("training_step", place)
        self.seen.append((*place, batch.item(), self.trainer.fit_loop.epoch_loop.batch_progress.is_last_batch))
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def _fit(folder, module, workers, **options):
    new_process()
    torch.manual_seed(3)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=EPOCHS, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, callbacks=[AutoResume(folder), OnExceptionCheckpoint(folder)],
        **options,
    )  # fmt: skip
    loader = DataLoader(torch.arange(float(BATCHES)), shuffle=True, num_workers=workers)
    if module.fails_at is None:
        trainer.fit(module, loader)
    else:
        with pytest.raises(ArithmeticError):
            trainer.fit(module, loader)
    return trainer.fit_loop.epoch_loop.state_dict()


@pytest.mark.parametrize(("workers", "hook"), [(0, "training_step"), (1, "training_step"), (0, "transfer")])
@pytest.mark.parametrize("options", [{}, {"limit_train_batches": 3}], ids=str)
@pytest.mark.parametrize("fails_at", [(1, 0), (1, 1), (1, 2)])
def test_a_batch_that_failed_is_trained_on_again_and_so_is_the_rest_of_its_epoch(
    tmp_path, fails_at, options, workers, hook
):
    whole, first, again, rest = Failing(), Failing(fails_at, hook), Failing(fails_at, hook), Failing()
    uninterrupted = _fit(tmp_path / "whole", whole, workers, **options)
    for module in (first, again):
        _fit(tmp_path / "job", module, workers, **options)
    assert not again.seen
    resumed = _fit(tmp_path / "job", rest, workers, **options)
    assert first.seen + rest.seen == whole.seen
    assert resumed["batch_progress"] == uninterrupted["batch_progress"]
    steps = [one["automatic_optimization.optim_progress"]["optimizer"]["step"] for one in (uninterrupted, resumed)]
    assert steps[0]["current"] == steps[1]["current"]
