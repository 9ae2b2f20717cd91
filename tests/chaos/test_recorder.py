# SPDX-License-Identifier: Apache-2.0
"""What judges interrupted runs is judged: a run that was tampered with is told from its reference, an equal one is not."""

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from tests.chaos.array_case import reference_case
from tests.chaos.compare import compare, compare_samples, lines_of
from tests.chaos.covering import FACTORS, finished
from tests.chaos.program_data import EpochSampler
from tests.chaos.program_model import run
from tests.conftest import ROOT, fork_ranks

STEP = 15
"""At which a run is tampered with: in the midst of the second of three epochs."""
LEVELS = {name: levels[0] for name, levels in FACTORS.items()}
LEVELS |= {"phase": "train_step", "data": "epoch_sampler", "val": "epoch", "end": "epochs", "extra": "early_stopping"}
LEVELS |= {"schedule": "plateau", "checkpoint": "top_k", "metrics": "torchmetrics", "ranks": 1, "strategy": "auto"}


def case_of(**levels):
    return reference_case(finished(LEVELS | levels, random.Random(0)))


class Tamper(Callback):
    """Does as a faulty restart would."""

    def __init__(self, kind: str | None) -> None:
        self.kind = kind

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step != STEP:
            return
        if self.kind == "momentum":
            trainer.optimizers[0].state.clear()
        elif self.kind == "rate":
            trainer.optimizers[0].param_groups[0]["lr"] *= 1.001
        elif self.kind == "epoch metric":
            trainer.fit_loop.epoch_loop._results.reset()
        elif self.kind == "metric object":
            pl_module.train_error.reset()
        elif self.kind == "dropout":
            torch.rand(1)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == STEP and self.kind == "parameter":
            with torch.no_grad():
                pl_module.head.weight[0, 0] += 1e-7
        if self.kind == "last parameter" and trainer.global_rank == 1 and trainer.global_step == STEP:
            with torch.no_grad():
                pl_module.head.weight[0, 0] += 1e-7
        is_last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if self.kind == "validation" and is_last and trainer.current_epoch == 1:
            assert not trainer.fit_loop.epoch_loop._skip_next_val  # it exists
            trainer.fit_loop.epoch_loop._skip_next_val = True

    def on_train_epoch_start(self, trainer, pl_module):
        if self.kind == "counter" and trainer.current_epoch == 1:
            trainer.early_stopping_callback.wait_count = 7
        elif self.kind == "best" and trainer.current_epoch == 1:
            trainer.checkpoint_callback.best_model_score = torch.tensor(0.0)
        elif self.kind == "schedule" and trainer.current_epoch == 1:
            trainer.lr_scheduler_configs[0].scheduler.best = 0.0


def train(folder, kind=None):
    folder.mkdir()
    run(folder, case_of(), 0, [Tamper(kind)])
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return train(tmp_path_factory.mktemp("oracle") / "reference")


def test_equal_runs_do_not_differ(reference, tmp_path):
    assert compare(reference, train(tmp_path / "run"), 1) == []
    assert compare_samples(reference, tmp_path / "run") == []
    kinds = [line["kind"] for line in lines_of(reference, 0)]
    assert {kind: kinds.count(kind) for kind in ("batch", "validation", "epoch", "end")} == {
        "batch": 30,
        "validation": 3,
        "epoch": 3,
        "end": 1,
    }


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("parameter", "epoch 1 batch 4: parameters is"),
        ("momentum", "epoch 1 batch 5: optimizers is"),
        pytest.param("rate", "epoch 1 batch 5: rates is", marks=pytest.mark.slow),
        pytest.param("dropout", "epoch 1 batch 5: loss is", marks=pytest.mark.slow),
        pytest.param("epoch metric", "epoch 1: metrics: train_loss_epoch is", marks=pytest.mark.slow),
        ("metric object", "epoch 1: metrics: train_error is"),
        pytest.param("validation", "validation epoch 1 batch 9 missing", marks=pytest.mark.slow),
        pytest.param("counter", "callbacks: EarlyStopping val_loss: wait_count is", marks=pytest.mark.slow),
        pytest.param("best", "callbacks: ModelCheckpoint val_loss: best_model_score is", marks=pytest.mark.slow),
        ("schedule", "epoch epoch 1: schedules is"),
    ],
)
def test_a_faulty_restart_is_told(reference, tmp_path, kind, told):
    found = compare(reference, train(tmp_path / "run", kind), 1)
    assert any(told in difference for difference in found), found[:10]


@pytest.mark.parametrize("kind", ["skipped", "doubled", "swapped"])
def test_other_samples_are_told(reference, tmp_path, monkeypatch, kind):
    before = EpochSampler.__iter__

    def samples(self):
        order = list(before(self))
        if self.epoch == 1:
            if kind == "skipped":
                del order[9]
            elif kind == "doubled":
                order[9] = order[8]
            else:
                order[9], order[30] = order[30], order[9]
        return iter(order)

    monkeypatch.setattr(EpochSampler, "__iter__", samples)
    found = compare(reference, train(tmp_path / "run"), 1)
    assert any("batch epoch 1 batch 2: ids is" in difference for difference in found), found[:10]
    of_samples = compare_samples(reference, tmp_path / "run")
    assert any("epoch 1" in difference for difference in of_samples) == (kind != "swapped")


def test_one_rank_of_two_is_told(tmp_path):
    for name in ("reference", "same", "last parameter"):
        (tmp_path / name).mkdir()
        fork_ranks(__file__, tmp_path / name, name, processes=2, PYTHONPATH=str(ROOT))
    assert compare(tmp_path / "reference", tmp_path / "same", 2) == []
    found = compare(tmp_path / "reference", tmp_path / "last parameter", 2)
    assert any("rank 1, start 0: batch epoch 1 batch 4: parameters is" in one for one in found), found[:10]
    assert not any("rank 0, start 0: batch epoch 1 batch 4" in one for one in found)


def pieces(reference, folder, *bounds, cut=""):
    """A record of several starts: of the reference's lines from ... to ..."""
    folder.mkdir()
    lines = [line for line in lines_of(reference, 0) if line["kind"] not in ("setup", "start")]
    with (folder / "rank-0.jsonl").open("w") as file:
        for start, (first, end) in enumerate(bounds):
            step = next((line["before"] for line in lines[first:] if line["kind"] == "batch"), 30)
            of_start = [{"kind": "setup", "start": start}, {"kind": "start", "start": start, "step": step}]
            for line in (*of_start, *lines[first:end]):
                file.write(json.dumps(line) + "\n")
            file.write(cut)
    return folder


def test_starts_that_go_on_do_not_differ(reference, tmp_path):
    whole = pieces(reference, tmp_path / "whole", (0, 14), (14, 20), (20, None))
    killed = pieces(reference, tmp_path / "killed", (0, 14), (8, 9), (9, None), cut='{"kind": "batch", "ep\n')
    for folder in (whole, killed):
        assert compare(reference, folder, 1) == []
        assert compare_samples(reference, folder) == []


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        (((0, 14), (15, None)), "start 1: batch epoch 1 batch 2 missing before batch epoch 1 batch 3"),
        (((0, 14), (14, 20)), "and 14 more missing at the end"),
        (((1, None),), "batch epoch 0 batch 0 missing before batch epoch 0 batch 1"),
        (((0, 10), (11, None)), "start 1: validation epoch 0 batch 9 missing"),
    ],
)
def test_starts_that_leave_out_something_are_told(reference, tmp_path, bounds, told):
    found = compare(reference, pieces(reference, tmp_path / "run", *bounds), 1)
    assert any(told in difference for difference in found), found


def test_a_sample_that_is_lost_between_starts_of_other_sizes_is_told(reference, tmp_path):
    found = compare_samples(reference, pieces(reference, tmp_path / "lost", (0, 14), (15, None)))
    assert any("epoch 1: 36 samples instead of 40" in difference for difference in found), found


if __name__ == "__main__":
    run(Path(sys.argv[1]), case_of(ranks=2, strategy="ddp", launcher="torchrun"), 0, [Tamper(sys.argv[2])])
