# SPDX-License-Identifier: Apache-2.0
"""What one process does when it is asked to stop: what the tests with several processes leave out."""

import contextlib
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.environments import SLURMEnvironment
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted
from tests.conftest import fork_ranks, run_bounded


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class SignalAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("saving_took", "is_saved"), [(None, True), (4.0, True), (50.0, False)])
def test_a_checkpoint_that_would_not_fit_in_the_grace_period_is_not_begun(saving_took, is_saved, tmp_path):
    spot = SpotInterruption(tmp_path, grace=5.0, patience=60.0, overhead=1.0)
    spot._save_seconds = saving_took  # as measured when the last one was written
    trainer = Trainer(
        accelerator="cpu", max_steps=50, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[spot, SignalAt(3)], default_root_dir=tmp_path,
    )  # fmt: skip
    (tmp_path / "auto-step=1.ckpt").write_bytes(b"the one before")
    says = r"skipping the checkpoint, as \d s are left and the last one took 50 s"
    warns = contextlib.nullcontext() if is_saved else pytest.warns(UserWarning, match=says)
    with warns, pytest.raises(Interrupted) as stopped:
        trainer.fit(Model(), DataLoader(torch.ones(64, 4)))
    assert stopped.value.code == 143
    written = [path.name for path in tmp_path.glob("auto-step=*.ckpt") if path.name != "auto-step=1.ckpt"]
    assert len(written) == is_saved
    assert (tmp_path / "auto-step=1.ckpt").read_bytes() == b"the one before"


def test_under_slurm_lightning_has_the_signals_and_the_clock_still_saves(tmp_path):
    handlers = []

    class Looks(Callback):
        def on_train_start(self, trainer, module):
            handlers.append(getattr(signal.getsignal(signal.SIGTERM), "__self__", None))

    spot = SpotInterruption(tmp_path, save_every=timedelta(0), overhead=1.0)
    trainer = Trainer(
        accelerator="cpu", max_steps=8, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[spot, Looks()], default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.strategy.cluster_environment = SLURMEnvironment(auto_requeue=False)
    trainer.fit(Model(), DataLoader(torch.ones(64, 4)))
    assert handlers[0] is not spot._signals
    assert list(tmp_path.glob("auto-step=*.ckpt"))


WAITS = """
import os, signal, sys, time
from lightning_sagemaker.callbacks.signals import StopSignals

signals = StopSignals([signal.SIGTERM], patience=1.0, exit_code=143)
signals.install()
os.kill(os.getpid(), signal.SIGTERM)
begin = time.monotonic()
while time.monotonic() - begin < 60:  # as if in a collective whose other rank is gone
    if sys.argv[1] == "alive" and time.monotonic() - begin < 3:
        signals.is_alive()
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("kind", "at_least"), [("waits", 0.0), ("alive", 3.0)])
def test_a_process_without_a_sign_of_life_ends(kind, at_least):
    begin = time.monotonic()
    result = run_bounded([sys.executable, "-c", WAITS, kind], timeout=50)
    assert result.returncode == 143
    assert "no step completed in 1 s since the stop signal" in result.stdout
    assert at_least < time.monotonic() - begin < 40


class SignalAtTheEnd(Callback):
    """After the last batch, when nothing is left that could stop."""

    def __init__(self, number):
        self.number = number

    def on_fit_end(self, trainer, pl_module):
        os.kill(os.getpid(), self.number)


def ended(folder, number):
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, max_steps=2, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[SpotInterruption(folder), SignalAtTheEnd(number)],
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(torch.ones(8, 4), 2))
    return trainer


def test_a_signal_at_the_end_of_a_fit_stops_what_comes_next(tmp_path):
    trainer = ended(tmp_path, signal.SIGTERM)
    trainer.callbacks[:] = [callback for callback in trainer.callbacks if not isinstance(callback, SignalAtTheEnd)]
    with pytest.raises(Interrupted):
        trainer.fit(Model(), DataLoader(torch.ones(8, 4), 2))
    trainer.fit(Model(), DataLoader(torch.ones(8, 4), 2))  # it is heard once


def test_ctrl_c_at_the_end_of_a_fit_is_not_lost(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            ended(tmp_path, signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning ignores it from there on


def test_ranks_may_have_other_numbers_of_batches_of_each_of_several_loaders():
    """Between two loaders Lightning reduces what was logged, so none may wait there for a signal's exchange."""
    fork_ranks(Path(__file__).parent / "uneven_worker.py", processes=2)


def test_a_fast_dev_run_neither_resumes_nor_saves(tmp_path):
    """As under Lightning, whose ModelCheckpoint is off: it would continue the real run, and leave its own checkpoint."""
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    data = DataLoader(torch.ones(64, 4))

    def trainer(*callbacks, **more):
        return Trainer(callbacks=[AutoResume(tmp_path), SpotInterruption(tmp_path), *callbacks], **options, **more)

    with pytest.raises(Interrupted):
        trainer(SignalAt(5), max_steps=20).fit(Model(), data)
    (written,) = tmp_path.iterdir()
    content, dry = written.read_bytes(), trainer(fast_dev_run=3)
    dry.fit(Model(), data)
    assert dry.global_step == 3
    with pytest.raises(Interrupted):
        trainer(SignalAt(1), fast_dev_run=3).fit(Model(), data)
    assert [*tmp_path.iterdir()] == [written]
    assert written.read_bytes() == content
