# SPDX-License-Identifier: Apache-2.0
"""Stopped after any step, in an epoch, at its end or in the validation, a run goes on as if it had not been."""

import os
import signal

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from lightning_sagemaker import AutoResume, ResumableLoader, SpotInterruption
from lightning_sagemaker.checkpoint.io import SafeCheckpointIO
from tests.chaos import worker
from tests.chaos.harness import lines_of
from tests.conftest import fork_ranks

STEPS = 30
"""An epoch is 12 steps, with a validation at its end."""


class SignalAt(Callback):
    """SIGTERM to this process: after a step, or in the validation behind it."""

    def __init__(self, step: int, in_validation: bool) -> None:
        self.step, self.in_validation = step, in_validation

    def _send(self, trainer) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_batch_start(self, trainer, *_) -> None:
        if not self.in_validation:
            self._send(trainer)

    def on_validation_batch_start(self, trainer, *_) -> None:
        if self.in_validation and not trainer.sanity_checking:
            self._send(trainer)


def losses(folder):
    return [(line["step"], line["loss"], line["samples"]) for line in lines_of(folder)]


@pytest.fixture(scope="module", autouse=True)
def quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "PAUSE", 0.0)
        patch.setattr(worker, "OVERHEAD", 1.0)  # steps are so short here that many would pass between two questions
        yield


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calm")
    worker.train(folder, STEPS)
    return losses(folder)


_SLOW = [pytest.param(step, marks=pytest.mark.slow) for step in (3, 5, 7, 9, 13, 15, 17, 19, 21, 23)]


@pytest.mark.parametrize("step", [1, 10, 11, 22, *_SLOW])
def test_stopped_after_a_step(calm, tmp_path, step):
    with pytest.raises(SystemExit) as caught:
        worker.train(tmp_path, STEPS, callbacks=[SignalAt(step, False)])
    assert caught.value.code == 143
    first = losses(tmp_path)
    assert len(first) < STEPS
    worker.train(tmp_path, STEPS)
    assert losses(tmp_path) == calm


@pytest.mark.parametrize("step", [12, 24])
def test_stopped_in_validation(calm, tmp_path, step):
    with pytest.raises(SystemExit):
        worker.train(tmp_path, STEPS, callbacks=[SignalAt(step, True)])
    assert len(losses(tmp_path)) == step
    worker.train(tmp_path, STEPS)
    assert losses(tmp_path) == calm


def test_another_number_of_processes_trains_on_the_same_samples(calm, tmp_path):
    """Stopped with one process, continued by two: each step's samples, over both, are those of the one."""
    with pytest.raises(SystemExit):
        worker.train(tmp_path, STEPS, callbacks=[SignalAt(9, False)])
    step = lines_of(tmp_path)[-1]["step"]
    fork_ranks(worker.__file__, tmp_path, STEPS, processes=2, PAUSE="0")
    first, second = lines_of(tmp_path, 0)[step:], lines_of(tmp_path, 1)
    assert len(first) == len(second) == STEPS - step
    for one, other, (number, _, expected) in zip(first, second, calm[step:], strict=True):
        assert one["step"] == other["step"] == number
        assert sorted(one["samples"] + other["samples"]) == sorted(expected)


class SignalInFirst(Callback):
    """SIGTERM with the first batch of any evaluation."""

    seen = 0

    def _send(self, *_) -> None:
        self.seen += 1
        if self.seen == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = _send


@pytest.mark.parametrize("stage", ["validate", "test", "predict", "fit"])
def test_evaluations_and_the_sanity_check_stop_without_a_checkpoint(tmp_path, stage):
    sender = SignalInFirst()
    options = {} if stage == "fit" else {"limit_val_batches": 12}
    with pytest.raises(SystemExit) as caught:
        worker.train(tmp_path, STEPS, stage, callbacks=[sender], **options)
    assert caught.value.code == 143
    assert sender.seen < 12
    assert not lines_of(tmp_path)
    assert not (tmp_path / "checkpoints").exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_checkpoint_written_beside_the_training_is_whole_when_the_process_ends(calm, tmp_path):
    def io():
        return AsyncCheckpointIO(SafeCheckpointIO())

    with pytest.raises(SystemExit):
        worker.train(tmp_path, STEPS, callbacks=[SignalAt(9, False)], plugins=io())
    step = lines_of(tmp_path)[-1]["step"]
    assert (tmp_path / "checkpoints" / f"auto-step={step}.ckpt").exists()
    worker.train(tmp_path, STEPS, plugins=io())
    assert losses(tmp_path) == calm


class Plain(LightningModule):
    """With nothing in it but a loader that anybody can use."""

    def __init__(self, stop: int | None, lengths: np.ndarray | None) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.stop, self.lengths, self.seen = stop, lengths, []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch[:, 0].tolist())
        if self.global_step == self.stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.net(batch).mean()

    def train_dataloader(self):
        data = torch.arange(30.0)[:, None]
        return ResumableLoader(data, self.trainer, batch_size=2, seed=1, lengths=self.lengths)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


@pytest.mark.parametrize("lengths", [None, np.arange(30) % 7])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_loader_for_any_module_goes_on(tmp_path, recwarn, accumulate, lengths):
    def run(folder, stop=None):
        module = Plain(stop, lengths)
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        callbacks = [AutoResume(folder), SpotInterruption(folder, overhead=1.0)]
        trainer = Trainer(
            accelerator="cpu", max_steps=12, accumulate_grad_batches=accumulate, callbacks=callbacks, **quiet
        )
        try:
            trainer.fit(module)
        except SystemExit:
            assert stop is not None
        return module.seen

    calm = run(tmp_path / "calm")
    first = run(tmp_path / "run", stop=6)
    assert 6 * accumulate < len(first) < len(calm) == 12 * accumulate
    assert first + run(tmp_path / "run") == calm
    in_epoch = 30 // (2 * accumulate) * accumulate
    epoch = [sample for batch in calm[:in_epoch] for sample in batch]
    assert len(set(epoch)) == len(epoch)
    assert not [warning for warning in recwarn if "not resumable" in str(warning.message)]


def test_a_loader_with_too_little_data_is_refused():
    with pytest.raises(ValueError, match="there are 3 samples, but a step takes 8.*HINT"):
        ResumableLoader(torch.ones(3, 1), Trainer(accelerator="cpu", logger=False, accumulate_grad_batches=2), 4)
