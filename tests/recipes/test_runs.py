# SPDX-License-Identifier: Apache-2.0
"""Runs beside each other: folders of their own, what is said first and last, interruptions, errors in one sentence."""

import json
import logging
import os
import re
import shlex
import signal
import sys
from argparse import ArgumentError
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from lightning_sagemaker import SageMakerJob, cli
from lightning_sagemaker.job import job
from lightning_sagemaker.recipes._common.cli.arguments import ArgumentNameError
from lightning_sagemaker.recipes._common.outputs import folders as folders_module
from lightning_sagemaker.recipes._common.outputs.folders import LATEST, RunFolders
from lightning_sagemaker.recipes.sequence_classification.train import main
from tests.conftest import ROOT, fork_ranks, new_process

RUNS = Path("runs/sequence-classification")
STEPS = 4
OPTIONS = [
    "--config",
    "tiny.yaml",
    "--max_train_samples",
    "64",
    "--max_eval_samples",
    "32",
    "--global_batch_size",
    "16",
]
OPTIONS += ["--trainer.num_sanity_val_steps", "0", "--val_check_interval", "2", "--log_every_n_steps", "1"]
OPTIONS += ["--cache_dir", "cache", "--trainer.max_epochs", "-1", "--trainer.enable_model_summary", "false"]


class Interrupts(Callback):
    """Presses Ctrl-C after a step."""

    def __init__(self, step: int = 2) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def place(tmp_path_factory, monkeypatch):
    """A working folder, with the data prepared once for all tests."""
    monkeypatch.chdir(tmp_path_factory.mktemp("place"))
    Path("cache").symlink_to(tmp_path_factory.getbasetemp() / "runs-cache")
    (tmp_path_factory.getbasetemp() / "runs-cache").mkdir(exist_ok=True)
    return Path()


def run(*words, strategy="auto", options=OPTIONS):
    new_process()
    main([str(word) for word in [*words, *options, "--strategy", strategy]])


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_each_run_has_its_folder_and_says_how_to_go_on(place, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "lightning_sagemaker")
    readings, assemble = [], job._assemble
    monkeypatch.setattr(job, "_assemble", lambda *args, **options: readings.append(1) or assemble(*args, **options))
    monkeypatch.setattr(job, "_of_this_process", job.Once(job._read))
    run("fit", "--max_steps", STEPS)
    assert len(readings) == 1  # the environment is read once in a process
    first = RUNS / os.readlink(RUNS / LATEST)
    before = contents(first)
    said = caplog.messages
    assert said.index("sequence-classification fit") < next(i for i, m in enumerate(said) if m.startswith("prepared"))
    assert any("train" in line and "transactions (embedded)" in line for line in said)
    rows = {
        line[2:].split("  ")[0].strip(): line
        for line in said[said.index(f"sequence-classification fit: finished at step {STEPS}") :]
    }
    history = (first / "output" / "history" / "metrics.csv").read_text()
    found = json.loads((first / "output" / "metrics.json").read_text())
    assert rows["exported"].endswith(
        f"step {found['exported_step']}, the best by val_f1_macro: {found['val_f1_macro']:.4f}"
    )
    assert rows["test_loss"].endswith(f"{found['test_loss']:.4f}")
    assert history.count("\n") > STEPS
    for name in ("model", "metrics", "curves", "checkpoint"):
        assert Path(rows[name].split()[-1]).exists()

    caplog.clear()
    words = shlex.split(rows["to test"].split("to test", 1)[1])[3:]
    main(words)  # what it says to do
    scores = json.loads((next(RUNS.glob("*-test")) / "output" / "metrics-test.json").read_text())
    assert any(f"{scores['test_loss']:.4g}" in line and "test_loss" in line for line in caplog.messages)

    words = shlex.split(rows["to predict"].split("to predict", 1)[1])[3:]
    Path("FILE").with_name("new.csv").write_text("text\nCARD SUPERMARKET 12.00\n")
    main([word.replace("FILE", "new.csv") for word in words] + ["--strategy", "auto", "--cache_dir", "cache"])
    assert len(list(RUNS.glob("*-predict*/output/predictions.csv"))) == 1

    run("fit", "--max_steps", 1)
    assert RUNS / os.readlink(RUNS / LATEST) != first
    assert contents(first) == before


def test_ctrl_c_leaves_a_checkpoint_and_the_command_that_resumes(place, caplog):
    caplog.set_level(logging.INFO, "lightning_sagemaker")
    run("fit", "--max_steps", STEPS, "--run_dir", "whole")
    stops = "--trainer.callbacks+=tests.recipes.test_runs.Interrupts"
    with pytest.raises(SystemExit) as stopped:
        run("fit", "--max_steps", STEPS, stops)
    assert stopped.value.code == 143
    folder = RUNS / os.readlink(RUNS / LATEST)
    line = next(message for message in caplog.messages if message.startswith("  to resume"))
    main(shlex.split(line.split("to resume", 1)[1])[3:])
    assert [path.name for path in RUNS.iterdir() if path.name != LATEST] == [folder.name]
    states = [torch.load(root / "checkpoints" / "last.ckpt", weights_only=True) for root in (Path("whole"), folder)]
    assert states[0]["global_step"] == states[1]["global_step"] == STEPS
    for name, value in states[0]["state_dict"].items():
        assert torch.equal(states[1]["state_dict"][name], value), name
    caplog.clear()
    run("fit", "--max_steps", STEPS + 1, "--resume", "always")  # of the latest training, without its name
    assert any("Resuming from step 4" in message for message in caplog.messages)
    assert (RUNS / LATEST).resolve() == folder.resolve()


@pytest.mark.slow
def test_a_folder_that_is_used_again_is_said(place, caplog):
    model = Path("mine/model")
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    run("fit", "--max_steps", 1, "--run_dir", "mine")
    assert any("contains a trained model, which this run overwrites. HINT:" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--train_file", "absent.csv"], r"error: data\.train='absent\.csv' was set.*does not exist.*HINT"),
        (["--max_step", "3"], r"error: --max_step was set.*HINT"),
        (["--data.textcolumns", "a"], r"error: --data\.textcolumns is not .*HINT: did you mean --data\.text_columns\?"),
        (["--data.zzz", "a"], r"error: unrecognized .*HINT.*--help-all"),
        (["--max_steps", "3", "--trainer.max_steps", "4"], r"error: --max_steps 3 and --trainer.max_steps 4.*HINT"),
        (["--num_nodes", "two"], r'error: Parser key "trainer.num_nodes".*HINT.*--help-all'),
        (["--num_nodes", "4"], r"error: num_nodes=4 was set, but nothing says where the other hosts are.*HINT"),
        (["--devices", "none"], r"error: .*devices.*HINT"),
        (["--ckpt_path", "absent.ckpt"], r"error: ckpt_path='absent.ckpt' was set.*HINT"),
        pytest.param(
            ["--config", "absent.yaml"],
            r"error: .*absent.yaml.*HINT.*--help-all",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--train_file", "latin.csv", "--data.encoding", "utf-8"],
            r"error: latin.csv: it is not utf-8.*HINT: set data.encoding",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--pretrained", "no-such-organization/no-such-model"],
            r"error: 'no-such-organization/no-such-model' was given.*HINT.*--pretrained null",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--pretrained", "absent.ckpt"],
            r"error: model.pretrained='absent.ckpt' was set.*HINT",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--pretrained", "./absent"],
            r"error: './absent' was given.*HINT.*--pretrained null",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_errors_end_with_one_sentence(place, words, said, capsys):
    Path("latin.csv").write_bytes("text,label\ncaf\xe9,a\n".encode("latin-1"))
    with pytest.raises(SystemExit, match="^2$"):
        run("fit", *words)
    assert re.match(said, capsys.readouterr().err.splitlines()[-1])
    assert not list(RUNS.glob("2*"))


def test_debug_shows_the_traceback_of_wrong_options(place):
    for words in (["--no_such_option", "1"], ["--trainer.max_steps", "one"]):
        with pytest.raises((ArgumentError, ArgumentNameError)):
            run("fit", "--debug", *words)


@pytest.mark.slow
def test_debug_shows_the_traceback(place):
    with pytest.raises(Exception, match="does not exist") as shown:
        run("fit", "--debug", "--train_file", "absent.csv")
    assert not isinstance(shown.value, SystemExit)


def test_an_error_in_a_container_keeps_its_traceback(place, monkeypatch):
    for name, value in {
        "SM_HOSTS": '["algo-1"]',
        "SM_CURRENT_HOST": "algo-1",
        "TRAINING_JOB_NAME": "j",
        "SAGEMAKER_BASE_DIR": "ml",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Exception, match="does not exist") as shown:
        run("fit", "--train_file", "absent.csv")
    assert not isinstance(shown.value, SystemExit)


@pytest.mark.parametrize("command", [["run", "bert-qa", "fit"], ["prepare", "albert-mlm", "a", "b"], ["demo"]])
def test_a_core_install_says_what_to_install(command, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert cli.main(command) == 1
    error = capsys.readouterr().err
    assert error == (
        "error: the recipes need transformers, not installed here. HINT: pip install 'lightning-sagemaker[recipes]'.\n"
    )


@pytest.mark.parametrize("missing", ["transformers", "jsonargparse"])
def test_a_core_install_says_so_of_train_py_too(missing, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--config", "tiny.yaml"])
    assert ended.value.code == 1
    assert "pip install 'lightning-sagemaker[recipes]'" in capsys.readouterr().err
    main(["--help"])  # needs none of them


def test_names_of_one_second_do_not_collide(place, monkeypatch):
    monkeypatch.setattr(folders_module.time, "strftime", lambda _: "20260101-000000")
    made = [RunFolders.of(SageMakerJob.from_environment(), "x").root for _ in range(3)]
    assert [path.name for path in made] == ["20260101-000000", "20260101-000000-2", "20260101-000000-3"]


def test_two_ranks_share_one_folder_and_one_error(place):
    fork_ranks(Path(__file__).with_name("runs_worker.py"), processes=2, PYTHONPATH=str(ROOT))
    assert [path.name for path in RUNS.iterdir() if path.is_dir() and not path.is_symlink()] == [
        os.readlink(RUNS / LATEST)
    ]
    first, second = (json.loads(Path(f"rank-{rank}.json").read_text()) for rank in range(2))
    assert first["code"] == second["code"] == 2
    assert first["said"].startswith("error: data.train='absent.csv' was set")
    assert second["said"] == ""
    saved = torch.load(RUNS / LATEST / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 2
