# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint a fit resumes from, in scripts that do more than one ``fit``: each fit has its own."""

import contextlib
import os
import signal
from datetime import timedelta

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker.callbacks import completed_fits
from lightning_sagemaker.callbacks.auto_resume import auto_resume_of
from lightning_sagemaker.callbacks.interruption import Interrupted
from tests.conftest import new_process

DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))


class Module(LightningModule):
    """Notes each step and its loss."""

    def __init__(self, net=None):
        super().__init__()
        self.net, self.lr, self.seen = net or torch.nn.Linear(4, 1), 0.01, []

    def training_step(self, batch, index):
        loss = self.net(batch).square().mean()
        self.seen.append((self.global_step, loss.item()))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)

    def train_dataloader(self):
        return DataLoader(DATA, getattr(self, "batch_size", 4))


class Validated(Module):
    def validation_step(self, batch, index):
        self.net(batch)


class StopAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def trainer_of(folder, *callbacks, every=None, **options):
    own = [AutoResume(folder), SpotInterruption(folder, save_every=every, overhead=1.0)] if folder else []
    return Trainer(
        accelerator="cpu", devices=1, max_epochs=2, callbacks=[*own, *callbacks], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, **options,
    )  # fmt: skip


def folds(folder, stop=None, every=None):
    """Three fits, the third of which goes on from the second one's weights: what each has seen."""
    seed_everything(1, verbose=False)
    seen, net = [], None
    for number in range(3):
        module = Module(net if number == 2 else None)
        callbacks = [StopAt(stop[1])] if stop is not None and stop[0] == number else []
        try:
            trainer_of(folder, *callbacks, every=every).fit(module, DataLoader(DATA, 4, shuffle=True))
        except Interrupted:
            return seen
        seen.append(module.seen)
        net = module.net
    return seen


def test_a_later_fit_does_not_resume_from_an_earlier_one(tmp_path):
    assert folds(tmp_path, every=timedelta(0)) == folds(None)


@pytest.mark.parametrize("stop", [(0, 5), (1, 5), (2, 9)])
def test_each_fit_resumes_from_its_own(stop, tmp_path):
    alone = folds(None)
    assert len(folds(tmp_path, stop, every=timedelta(0))) == stop[0]
    new_process()
    after = folds(tmp_path, every=timedelta(0))
    for number in range(3):
        begun = len(alone[number]) - len(after[number])  # of those that had completed: what followed their last save
        assert after[number] == alone[number][begun:], number
        assert begun == (stop[1] if number == stop[0] else begun if number < stop[0] else 0)


def test_a_completed_fit_says_that_it_is_not_resumed_from(tmp_path, caplog):
    folds(tmp_path, stop=(1, 3), every=timedelta(0))
    completed_fits._COMPLETED[str(tmp_path)] = 3
    with caplog.at_level("INFO"):
        trainer_of(tmp_path).fit(Module(), DataLoader(DATA, 4))
    assert "of another fit of this script, not resumed from. HINT: to continue from it, pass ckpt_path=" in caplog.text


@pytest.mark.parametrize("before", ["lr_find", "scale_batch_size", "validate"])
def test_what_comes_before_the_fit_is_not_taken_for_its_checkpoint(before, tmp_path):
    plain = trainer_of(None)
    plain.fit(Module(), DataLoader(DATA, 4))
    plain.save_checkpoint(tmp_path / "pretrained.ckpt")

    def run(folder, *callbacks):
        new_process()
        seed_everything(1, verbose=False)
        module = Validated() if before == "validate" else Module()
        trainer = trainer_of(folder, *callbacks, default_root_dir=tmp_path)
        if before == "lr_find":
            Tuner(trainer).lr_find(module, num_training=5, min_lr=1e-3, max_lr=1e-2, update_attr=False)
        elif before == "scale_batch_size":
            module.batch_size = 4
            Tuner(trainer).scale_batch_size(module, steps_per_trial=1, max_trials=1, init_val=4)
            module.batch_size = 4
        else:
            trainer.validate(module, DataLoader(DATA, 4), ckpt_path=tmp_path / "pretrained.ckpt", verbose=False)
        module.seen.clear()
        with contextlib.suppress(Interrupted):
            trainer.fit(module)
        return module.seen

    alone, first = run(None), run(tmp_path / "own", StopAt(7))
    assert [*first, *run(tmp_path / "own")] == alone


def test_a_given_checkpoint_is_loaded_and_none_is_searched_for(tmp_path, caplog):
    folds(tmp_path / "own", stop=(0, 5))
    given = trainer_of(None, max_steps=4)
    given.fit(Module(), DataLoader(DATA, 4))
    given.save_checkpoint(tmp_path / "given.ckpt")
    module = Module()
    with caplog.at_level("INFO"):
        trainer_of(tmp_path / "own").fit(module, DataLoader(DATA, 4), ckpt_path=tmp_path / "given.ckpt")
    assert module.seen[0][0] == 4
    assert "Resuming from step" not in caplog.text


def test_without_a_folder_a_restarted_run_looks_where_it_has_saved(tmp_path):
    """With a logger, ``ModelCheckpoint`` writes into the folder of the logger's version, which each start counts up."""

    def run(*own):
        new_process()
        seed_everything(1, verbose=False)
        module = Module()
        trainer = Trainer(
            accelerator="cpu", devices=1, max_epochs=2, default_root_dir=tmp_path, callbacks=[*own],
            logger=CSVLogger(tmp_path),
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        with contextlib.suppress(Interrupted):
            trainer.fit(module)
        return module.seen

    alone = run()
    first = run(AutoResume(), SpotInterruption(overhead=1.0), StopAt(5))
    assert (tmp_path / "checkpoints" / "auto-step=5.ckpt").exists()
    assert [*first, *run(SpotInterruption(overhead=1.0), AutoResume())] == alone


@pytest.mark.parametrize("given", ["saves", "resumes"])
def test_a_folder_that_one_callback_is_given_is_the_others_too(tmp_path, given):
    def callbacks():
        saves, resumes = ({"dirpath": tmp_path / "own"} if given == one else {} for one in ("saves", "resumes"))
        return AutoResume(**resumes), SpotInterruption(**saves, save_every=None, overhead=1.0)

    def trainer(*others):
        return trainer_of(None, *callbacks(), *others, default_root_dir=tmp_path)

    with contextlib.suppress(Interrupted):
        trainer(StopAt(3)).fit(Module())
    new_process()
    resumed = Module()
    trainer().fit(resumed)
    assert [step for step, _ in resumed.seen] == [*range(3, 12)]
    assert not (tmp_path / "checkpoints").exists()


def test_what_ends_a_job_saves_where_this_fit_resumes_from(tmp_path):
    paths = []

    class Ends(Callback):
        def on_train_end(self, trainer, module):
            paths.append(auto_resume_of(trainer).next_path(trainer))

    for _ in range(2):
        trainer_of(tmp_path, Ends()).fit(Module())
    assert paths == [f"{tmp_path}/auto-step=12.ckpt", f"{tmp_path}/auto-fit=1-step=12.ckpt"]
