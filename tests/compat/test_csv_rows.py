# SPDX-License-Identifier: Apache-2.0
"""The file of a CSV logger with a fixed version, over starts that are stopped, killed and resumed."""

import csv
import os
import signal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker._compat.csv_rows import continue_rows, count_rows, writer_of
from lightning_sagemaker.callbacks.interruption import Interrupted
from tests.conftest import new_process

DATA = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))


class Module(LightningModule):
    """Logs by step, by epoch and in validations, and later a value that was not there before."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.net(batch).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        if self.current_epoch:
            self.log("again", loss / 2)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.net(batch).mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Ends(Callback):
    def __init__(self, batch, how):
        self.batch, self.how = batch, how

    def on_train_batch_start(self, trainer, *_):
        if trainer.fit_loop.total_batch_idx + 1 == self.batch:
            os._exit(9) if self.how == "kill" else os.kill(os.getpid(), signal.SIGTERM)


def train(folder, end=None, how="stop", saves=None, **options):
    """One start, whose rows are flushed as rarely as by default."""
    new_process()
    seed_everything(1, verbose=False)
    own = []
    if saves is not None:
        own = [AutoResume(folder), SpotInterruption(folder, overhead=1.0), *([Ends(end, how)] if end else [])]
        own.append(ModelCheckpoint(folder, save_top_k=-1, **saves))
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=3, callbacks=[*own, LearningRateMonitor()], log_every_n_steps=1,
        logger=CSVLogger(folder, "", "one"), enable_checkpointing=bool(own), enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip
    try:
        trainer.fit(Module(), DataLoader(DATA, 4, shuffle=True), DataLoader(DATA[:8], 4))
    except Interrupted:
        assert end is not None


def killed(*arguments, **options):
    """A start that is killed, in a process of its own."""
    child = os.fork()
    if not child:
        train(*arguments, how="kill", **options)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize(
    ("how", "ends", "saves", "options"),
    [
        ("stop", [4, 12, 20], {}, {}),
        ("stop", [8], {}, {"val_check_interval": 5, "accumulate_grad_batches": 3}),
        ("kill", [8, 17], {"every_n_train_steps": 1}, {"val_check_interval": 5}),
        ("kill", [26], {"every_n_epochs": 1, "save_on_train_epoch_end": True}, {"accumulate_grad_batches": 3}),
        ("kill", [26], {"monitor": "val_loss"}, {}),
    ],
    ids=str,
)
def test_the_file_is_that_of_a_run_that_was_left_alone(tmp_path, how, ends, saves, options):
    train(tmp_path / "alone", **options)
    for end in ends:
        (killed if how == "kill" else train)(tmp_path / "own", end, saves=saves, **options)
    train(tmp_path / "own", saves=saves, **options)
    alone, own = ((tmp_path / which / "one" / "metrics.csv").read_text() for which in ("alone", "own"))
    assert own == alone


def rows(folder):
    with (folder / "one" / "metrics.csv").open(newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def log(folder, steps, count=None):
    """A start that continues after so many rows, or begins anew."""
    logger = CSVLogger(folder, "", "one")
    assert logger.experiment is not None
    if count is not None:
        continue_rows(writer_of(logger), count)
    for step in steps:
        logger.log_metrics({"loss": 1.0 / step}, step)
    logger.finalize("success")
    return count_rows(writer_of(logger))


def test_a_start_from_scratch_replaces_the_file_when_it_saves(tmp_path):
    log(tmp_path, range(1, 7))
    log(tmp_path, [])
    assert rows(tmp_path) == [1, 2, 3, 4, 5, 6]
    log(tmp_path, range(1, 3))
    assert rows(tmp_path) == [1, 2]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80))
def test_any_file_left_by_a_killed_job_is_no_error(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("rows")
    assert log(folder, range(1, 4)) == 3
    with (folder / "one" / "metrics.csv").open("ab") as file:
        file.write(content)
    assert log(folder, range(3, 5), 2) == 4
    assert rows(folder) == [1, 2, 3, 4]
