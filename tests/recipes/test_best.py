# SPDX-License-Identifier: Apache-2.0
"""The best step is exported and tested, whatever interrupted the run; stock Lightning says which step that is."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from safetensors.torch import load_file

from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
from lightning_sagemaker.recipes._common.outputs.best import BestModel, mode_of
from lightning_sagemaker.recipes.sequence_classification.glue import TASKS
from lightning_sagemaker.recipes.sequence_classification.recipe import RECIPE
from tests.conftest import ROOT, fork_ranks

SCORES = {2: 0.2, 4: 0.9, 6: 0.5, 8: 0.9, 10: 0.7, 12: 1.0, 14: 0.1}
"""Step -> score: two equal peaks, and a higher one that is not reached with a patience of 3."""
PATIENCE, BEST, STOP = 3, 4, 10
OPTIONS = (
    "--config tiny.yaml --max_train_samples 64 --max_eval_samples 32 --global_batch_size 16 --val_check_interval 2"
)
OPTIONS += " --trainer.num_sanity_val_steps 0 --log_every_n_steps 1 --trainer.max_epochs -1 --max_steps 14"
OPTIONS += " --dropout 0 --trainer.enable_model_summary false --trainer.callbacks+=tests.recipes.test_best.Scripted"
MONITOR = "--monitor scripted_score --patience 3"


class Scripted(Callback):
    """Logs a score that the test has chosen."""

    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.log("val_scripted_score", SCORES.get(trainer.global_step, 0.0), sync_dist=True)


class Interrupts(Callback):
    """Presses Ctrl-C after a step, on the last rank."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step and trainer.global_rank == trainer.world_size - 1:
            os.kill(os.getpid(), signal.SIGINT)


def run(folder, *more, strategy="auto", stage="fit"):
    words = [
        stage,
        *OPTIONS.split(),
        "--strategy",
        strategy,
        "--run_dir",
        folder,
        "--cache_dir",
        folder.parent / "cache",
    ]
    RecipeCLI(RECIPE, [str(word) for word in [*words, *more]])


def checkpoint(folder, name):
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def metrics(folder):
    values = json.loads((folder / "output" / "metrics.json").read_text())
    return {name: value for name, value in values.items() if not re.search("second|timed|data_wait", name)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("best") / "whole"
    run(folder, *MONITOR.split())
    return folder


def assert_same(folder, whole):
    assert metrics(folder) == metrics(whole)
    for name in ("best", "last"):
        found, wanted = checkpoint(folder, name), checkpoint(whole, name)
        assert found["global_step"] == wanted["global_step"]
        assert all(torch.equal(found["state_dict"][key], value) for key, value in wanted["state_dict"].items())
    (count,) = (state for key, state in found["callbacks"].items() if key.startswith("EarlyStopping"))
    assert count["wait_count"] == PATIENCE
    assert float(count["best_score"]) == pytest.approx(SCORES[BEST])
    files = [path / "model" / "model.safetensors" for path in (folder, whole)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_best_and_last_step_are_those_of_stock_lightning(whole, tmp_path):
    stock = ModelCheckpoint(tmp_path / "stock", "{step}", monitor="val_scripted_score", mode="max")
    stop = EarlyStopping("val_scripted_score", patience=PATIENCE, mode="max")
    words = [*OPTIONS.split(), "--strategy", "auto", "--run_dir", tmp_path / "a", "--cache_dir", whole.parent / "cache"]
    made = RecipeCLI(RECIPE, [*map(str, words), "--monitor", "null"], run=False)
    made.trainer.callbacks += [stop, stock]
    made.trainer.fit(made.model, made.datamodule)
    assert Path(stock.best_model_path).name == f"step={BEST}.ckpt"
    assert made.trainer.global_step == STOP
    assert metrics(tmp_path / "a")["exported_step"] == STOP  # without a metric it is the last

    found = metrics(whole)
    assert (found["exported_step"], found["steps"], found["monitor"]) == (BEST, STOP, "val_scripted_score")
    assert found["val_scripted_score"] == pytest.approx(SCORES[BEST])
    theirs = torch.load(stock.best_model_path, weights_only=True)["state_dict"]
    ours, last = checkpoint(whole, "best"), checkpoint(whole, "last")
    exported = load_file(whole / "model" / "model.safetensors")
    assert ours["global_step"] == BEST
    assert last["global_step"] == STOP
    for name, value in theirs.items():
        assert torch.equal(ours["state_dict"][name], value), name
        assert torch.equal(exported[name.removeprefix("model.")], value), name
    assert any(not torch.equal(last["state_dict"][name], value) for name, value in theirs.items())


def test_the_exported_model_is_tested_and_its_validation_reported(whole, tmp_path):
    (tmp_path / "cache").symlink_to(whole.parent / "cache")
    run(tmp_path / "a", "--ckpt_path", whole / "checkpoints" / "best.ckpt", stage="test")
    alone = json.loads((tmp_path / "a" / "output" / "metrics-test.json").read_text())
    run(tmp_path / "b", "--ckpt_path", whole / "checkpoints" / "best.ckpt", stage="validate")
    validated = json.loads((tmp_path / "b" / "output" / "metrics-validate.json").read_text())
    names = ("loss", "accuracy", "f1_macro")
    found = metrics(whole)
    assert [found[f"test_{name}"] for name in names] == [alone[f"test_{name}"] for name in names]
    assert [found[f"val_{name}"] for name in names] == [validated[f"val_{name}"] for name in names]
    reports = [json.loads((f / "output" / "report-validate.json").read_text()) for f in (whole, tmp_path / "b")]
    assert reports[0] == reports[1]
    card = (whole / "model" / "README.md").read_text()
    assert all(f" {found[name]:.6g} |" in card for name in ("test_loss", "val_loss"))


@pytest.mark.parametrize("step", [3, pytest.param(9, marks=pytest.mark.slow)])
def test_an_interrupted_run_keeps_the_best_and_the_count(whole, tmp_path, step):
    (tmp_path / "cache").symlink_to(whole.parent / "cache")
    stops = ["--trainer.callbacks+=tests.recipes.test_best.Interrupts", f"--trainer.callbacks.step={step}"]
    with pytest.raises(SystemExit) as stopped:
        run(tmp_path / "a", *MONITOR.split(), *stops)
    assert stopped.value.code == 143
    run(tmp_path / "a", *MONITOR.split(), "--resume", "always")
    assert_same(tmp_path / "a", whole)


def test_a_finished_run_is_exported_again_if_that_was_lost(whole, tmp_path):
    """As after a kill while the model was written."""
    folder = tmp_path / "best" / "whole"  # ModelCheckpoint's state is of a folder
    shutil.copytree(whole, folder)
    for name in ("best", "last"):
        path = folder / "checkpoints" / f"{name}.ckpt"
        content = torch.load(path, weights_only=True)
        for state in (content["callbacks"][key] for key in content["callbacks"] if key.startswith("ModelCheckpoint")):
            for entry in ("dirpath", "best_model_path", "kth_best_model_path"):
                state[entry] = state[entry].replace(str(whole), str(folder))
            state["best_k_models"] = {k.replace(str(whole), str(folder)): v for k, v in state["best_k_models"].items()}
        torch.save(content, path)
    (tmp_path / "best" / "cache").symlink_to(whole.parent / "cache")
    shutil.rmtree(folder / "model")
    run(folder, *MONITOR.split(), "--resume", "always")
    files = [path / "model" / "model.safetensors" for path in (folder, whole)]
    assert files[0].read_bytes() == files[1].read_bytes()
    names = ("exported_step", "val_loss", "test_loss", "steps")
    assert [metrics(folder)[name] for name in names] == [metrics(whole)[name] for name in names]


def test_two_processes_of_which_one_sees_the_file(whole, tmp_path):
    fork_ranks(Path(__file__).with_name("best_worker.py"), tmp_path / "two", processes=2, PYTHONPATH=str(ROOT))
    one, two = metrics(whole), metrics(tmp_path / "two")
    assert (two["exported_step"], two["steps"]) == (BEST, STOP)
    for name in ("val_loss", "test_loss", "val_accuracy", "test_accuracy"):
        assert two[name] == pytest.approx(one[name], rel=1e-4)
    exported, weights = (
        load_file(tmp_path / "two" / "model" / "model.safetensors"),
        checkpoint(tmp_path / "two", "best"),
    )
    for name, value in exported.items():
        assert torch.equal(weights["state_dict"][f"model.{name}"], value), name


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("val_loss", "min"),
        ("val_mse", "min"),
        ("val_perplexity", "min"),
        ("val_f1_macro", "max"),
        ("val_HasAns_f1", "max"),
    ]
    + [(f"val_{name}", "max") for task in TASKS.values() for name in task.metrics],
)
def test_names_say_whether_more_is_better(metric, mode):
    assert mode_of(metric) == mode


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"monitor": "val_best_f1_thresh"}, r"--monitor val_best_f1_thresh was set.*HINT: add --monitor_mode"),
        ({"patience": 0}, r"--patience 0 was set.*HINT"),
        ({"patience": 2, "monitor": None}, r"--patience 2 was set with --monitor null.*HINT"),
        ({"monitor": "val_f1", "keeps": False}, r"enable_checkpointing=false.*HINT"),
    ],
)
def test_contradictions_are_refused_at_once(tmp_path, options, said):
    with pytest.raises(MisconfigurationException, match=said):
        BestModel(tmp_path, **options)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ["--monitor", "f1_makro", "--monitor_mode", "max"],
            r"--monitor val_f1_makro was set.*name is val_f1_macro",
        ),
        (
            ["--monitor", "f1", "--trainer.limit_val_batches", "0"],
            r"--monitor val_f1 or --patience was set.*no validation",
        ),
    ],
)
def test_what_validation_does_not_give_is_refused(whole, tmp_path, more, said):
    (tmp_path / "cache").symlink_to(whole.parent / "cache")
    with pytest.raises(MisconfigurationException, match=said):
        run(tmp_path / "a", *more)
