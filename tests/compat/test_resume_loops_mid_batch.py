# SPDX-License-Identifier: Apache-2.0
"""A checkpoint saved within a batch, as after an exception: the batch and all others that are left are trained on."""

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from lightning_sagemaker import AutoResume
from tests.conftest import new_process

DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))


class Fails(Exception):
    pass


class Module(LightningModule):
    def __init__(self, fails_at=None, hook="training_step"):
        super().__init__()
        self.net, self.seen, self.fails_at, self.hook = torch.nn.Linear(4, 1), [], fails_at, hook

    def fail(self, hook):
        if (self.hook, self.trainer.fit_loop.epoch_loop.total_batch_idx) == (hook, self.fails_at):
            raise Fails

    def on_train_batch_start(self, batch, index):
        self.fail("on_train_batch_start")

    def training_step(self, batch, index):
        self.fail("training_step")
        loss = self.net(batch).square().mean()
        self.seen.append((self.current_epoch, index, loss.item()))
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.fail("on_before_optimizer_step")

    def on_validation_model_zero_grad(self):
        self.fail("on_validation_model_zero_grad")
        super().on_validation_model_zero_grad()

    def validation_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


class SavesOnException(Callback):
    def __init__(self, path):
        self.path = path

    def on_exception(self, trainer, module, exception):
        trainer.save_checkpoint(self.path)


class Noisy(Dataset):
    """Adds random numbers of its worker."""

    def __len__(self):
        return len(DATA)

    def __getitem__(self, number):
        return DATA[number] + torch.rand(4)


class Stream(IterableDataset):
    """Each worker has half of the samples."""

    def __iter__(self):
        worker = get_worker_info()
        for number in range(worker.id * 12, worker.id * 12 + 12):
            yield DATA[number] + torch.rand(4)


LOADERS = {
    "in this process": lambda: DataLoader(DATA, 4, shuffle=True),
    "by workers": lambda: DataLoader(Noisy(), 4, shuffle=True, num_workers=2),
    "by workers that stay": lambda: DataLoader(Noisy(), 4, shuffle=True, num_workers=2, persistent_workers=True),
    "a stream": lambda: DataLoader(Stream(), 4, num_workers=2),
}


def fit(folder, module, loader="in this process", **options):
    new_process()
    torch.manual_seed(1)
    with torch.no_grad():
        module.net.weight.fill_(0.5)
        module.net.bias.fill_(0.1)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[AutoResume(folder), SavesOnException(folder / "failed.ckpt")], **options,
    )  # fmt: skip
    trainer.fit(module, LOADERS[loader](), DataLoader(DATA, 8))
    return trainer


@pytest.mark.parametrize("hook", ["on_train_batch_start", "training_step", "on_before_optimizer_step"])
@pytest.mark.parametrize("fails_at", [0, 3, 5, 8, 11, 17])
def test_all_batches_that_are_left_are_trained_on(tmp_path, fails_at, hook):
    through, failed, resumed = Module(), Module(fails_at, hook), Module()
    fit(tmp_path / "through", through)
    with pytest.raises(Fails):
        fit(tmp_path, failed)
    trainer = fit(tmp_path, resumed)
    assert [*failed.seen[:fails_at], *resumed.seen] == through.seen
    assert trainer.global_step == 18
    assert torch.equal(resumed.net.weight, through.net.weight)


@pytest.mark.parametrize("options", [{"limit_train_batches": 4}, {"val_check_interval": 2}], ids=str)
def test_limits_count_the_batch_once(tmp_path, options):
    through, failed, resumed = Module(), Module(5), Module()
    fit(tmp_path / "through", through, **options)
    with pytest.raises(Fails):
        fit(tmp_path, failed, **options)
    fit(tmp_path, resumed, **options)
    assert [*failed.seen[:5], *resumed.seen] == through.seen


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("fails_at", [0, 8])
def test_a_batch_that_fails_again_is_not_left_out(tmp_path, fails_at, loader):
    through, resumed = Module(), Module()
    fit(tmp_path / "through", through, loader)
    for _ in range(2):
        failed = Module(fails_at)
        with pytest.raises(Fails):
            fit(tmp_path, failed, loader)
    fit(tmp_path, resumed, loader)
    assert resumed.seen == through.seen[fails_at:]


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"accumulate_grad_batches": 4}], ids=str)
@pytest.mark.parametrize("fails_at", [1, 8, 9, 10, 17])
def test_no_gradient_is_lost(tmp_path, options, fails_at):
    """Of batches since the last optimizer step, in an epoch's first one too."""
    through, failed, resumed = Module(), Module(fails_at), Module()
    fit(tmp_path / "through", through, **options)
    with pytest.raises(Fails):
        fit(tmp_path, failed, **options)
    fit(tmp_path, resumed, **options)
    assert resumed.seen == through.seen[-len(resumed.seen) :]
    assert len(failed.seen) + len(resumed.seen) >= len(through.seen)
    assert torch.equal(resumed.net.weight, through.net.weight)


def test_a_failure_before_a_later_validation_repeats_no_batch(tmp_path):
    through, failed, resumed = Module(), Module(11, "on_validation_model_zero_grad"), Module()
    fit(tmp_path / "through", through)
    with pytest.raises(Fails):
        fit(tmp_path, failed)
    fit(tmp_path, resumed)
    assert [*failed.seen, *resumed.seen] == through.seen


def test_no_gradient_is_lost_in_a_run_that_is_resumed_and_fails_again(tmp_path):
    options = {"accumulate_grad_batches": 4}
    through, resumed = Module(), Module()
    fit(tmp_path / "through", through, **options)
    for fails_at in (1, 2, 4, 5, 9, 10, 11, 13):
        with pytest.raises(Fails):
            fit(tmp_path, Module(fails_at), **options)
    fit(tmp_path, resumed, **options)
    assert resumed.seen == through.seen[-len(resumed.seen) :]
    assert torch.equal(resumed.net.weight, through.net.weight)
