# SPDX-License-Identifier: Apache-2.0
"""The recipe from the command line to the model folder, on one process and on two simulated hosts."""

import argparse
import csv
import io
import json
import re
import shutil
import sys

import pytest
import torch
import yaml

from lightning_sagemaker.commands import run as recipe_command
from lightning_sagemaker.launch import run_local_cluster
from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
from lightning_sagemaker.recipes.albert_mlm.recipe import RECIPE
from tests.conftest import ROOT, run_bounded

STEPS = 12
TRAIN = ROOT / "recipes" / "albert_mlm" / "train.py"

GOLDEN = {1: 5.3091, 4: 5.0174, 8: 4.6478, 12: 4.7261}
"""Step -> loss of the fixture `one_process`, measured with torch 2.13 on x86."""


def arguments(text_file, run, *more, steps=STEPS):
    data = ["--text", text_file, "--cache_dir", text_file.parent / "cache", "--vocab_size", 300]
    data += ["--sequence_length", 32, "--global_batch_size", 16, "--data.val_fraction", 0.2]
    training = [
        "--precision",
        "32-true",
        "--max_steps",
        steps,
        "--log_every_n_steps",
        1,
        "--warmup_steps",
        2,
        "--run_dir",
        run,
    ]
    return [str(word) for word in ["--config", "tiny.yaml", *data, *training, *more]]


def history(run, name):
    with (run / "output" / "history" / "metrics.csv").open() as rows:
        return {int(row["step"]): float(row[name]) for row in csv.DictReader(rows) if row.get(name)}


@pytest.fixture(scope="module")
def one_process(text_file, tmp_path_factory):
    run = tmp_path_factory.mktemp("one")
    torch.set_num_threads(1)
    RecipeCLI(RECIPE, arguments(text_file, run, "--strategy", "auto", "--val_check_interval", 6))
    return run


@pytest.fixture(scope="module")
def two_hosts(text_file, tmp_path_factory, one_process):
    """The same global batch on two simulated hosts with SMDDP, in two micro-batches on each."""
    run = tmp_path_factory.mktemp("two")
    parallel = ["--gradient_accumulation_steps", 2, "--baseline", one_process / "output" / "throughput.json"]
    parallel += ["--val_check_interval", 12]  # counted in micro-batches: step 6, as with one process
    command = [sys.executable, str(TRAIN), *arguments(text_file, run, *parallel)]
    output = io.StringIO()
    job = run_local_cluster(
        command, hosts=2, distribution="smddp", root=tmp_path_factory.mktemp("hosts"), timeout=240, output=output
    )
    assert job.returncode == 0, output.getvalue()[-6000:]
    return run, output.getvalue()


def test_losses_are_those_recorded(one_process):
    losses = history(one_process, "loss")
    assert {step: losses[step] for step in GOLDEN} == pytest.approx(GOLDEN, abs=0.02)


def test_two_hosts_with_accumulation_equal_one_process(one_process, two_hosts):
    run, _ = two_hosts
    one, two = history(one_process, "loss"), history(run, "loss")
    assert list(one) == list(two) == list(range(1, STEPS + 1))
    assert two == pytest.approx(one, abs=1e-4)
    for name in ("accuracy", "val_loss", "val_accuracy", "val_perplexity"):
        assert history(run, name) == pytest.approx(history(one_process, name), rel=1e-4)


def test_one_line_for_each_step_from_rank_zero_only(two_hosts):
    _, output = two_hosts
    for step in range(1, STEPS + 1):
        mark = f"algo-1 [0] | step={step} "
        lines = [line for line in output.splitlines() if line.startswith(mark) and " loss=" in line]
        assert len(lines) == 1, output
    assert "scaling_efficiency=" in output


def test_model_folder_is_loaded_by_transformers(one_process):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    model = AutoModelForMaskedLM.from_pretrained(one_process / "model")
    tokenizer = AutoTokenizer.from_pretrained(one_process / "model")
    batch = tokenizer(f"abc {tokenizer.mask_token} def", return_tensors="pt")
    assert model(**batch).logits.shape == (1, batch["input_ids"].shape[1], len(tokenizer))
    checkpoint = torch.load(one_process / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == STEPS
    trained = checkpoint["state_dict"]["model.albert.embeddings.word_embeddings.weight"]
    torch.testing.assert_close(model.albert.embeddings.word_embeddings.weight.data, trained, atol=0, rtol=0)


def test_metrics_and_configuration_are_kept(one_process, two_hosts):
    one = json.loads((one_process / "output" / "metrics.json").read_text())
    two = json.loads((two_hosts[0] / "output" / "metrics.json").read_text())
    assert (one["steps"], one["processes"], two["processes"], two["nodes"]) == (STEPS, 1, 2, 2)
    assert (one["strategy"], two["strategy"]) == ("SingleDeviceStrategy", "SMDDPStrategy")
    assert one["samples_per_second"] > 0
    assert two["val_loss"] == pytest.approx(one["val_loss"], rel=1e-4)
    assert (
        0
        < two["scaling_efficiency"]
        == pytest.approx(
            two["samples_per_second"]
            / (2 * json.loads((one_process / "output" / "throughput.json").read_text())["samples_per_second"])
        )
    )
    kept = yaml.safe_load((one_process / "output" / "config.yaml").read_text())
    assert (kept["trainer"]["max_steps"], kept["model"]["size"]) == (STEPS, "tiny")
    assert any((one_process / "output" / "tensorboard").glob("events.*"))


def test_checkpoint_is_loaded_without_data(one_process):
    from lightning_sagemaker.recipes.albert_mlm.module import AlbertMLM

    module = AlbertMLM.load_from_checkpoint(one_process / "checkpoints" / "last.ckpt")
    assert module.model.config.hidden_size == 128


def test_other_recipes_start_from_a_pretraining_checkpoint(one_process):
    from transformers import AutoModelForQuestionAnswering

    from lightning_sagemaker.recipes._common.modules.pretrained import load_config, load_model, load_tokenizer

    start = str(one_process / "checkpoints" / "last.ckpt")
    model = load_model(AutoModelForQuestionAnswering, start, load_config(start))
    trained = torch.load(start, weights_only=True)["state_dict"]
    body = {name: value for name, value in model.state_dict().items() if name.startswith("albert.")}
    assert len(body) > 20
    for name, value in body.items():
        torch.testing.assert_close(value, trained[f"model.{name}"], atol=0, rtol=0)
    assert len(load_tokenizer(start)) == model.config.vocab_size


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_other_stages_start_from_the_model_folder(text_file, one_process, tmp_path, stage):
    options = [stage, *arguments(text_file, tmp_path, "--strategy", "auto", "--pretrained", one_process / "model")]
    options += ["--tokenizer", str(one_process / "model")]
    RecipeCLI(RECIPE, options)
    output = tmp_path / "output"
    if stage == "predict":
        rows = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
        assert [row["index"] for row in rows] == list(range(len(rows)))
        assert len(rows) > 3
        assert len(rows[0]["predictions"]) == len(rows[0]["labels"]) == round(0.15 * 30)
    else:
        metrics = json.loads((output / f"metrics-{stage}.json").read_text())
        prefix = "val" if stage == "validate" else "test"
        # Better than guessing among 300 tokens (5.70).
        assert 0 < metrics[f"{prefix}_loss"] < 5.7
    assert not (tmp_path / "model").exists()


def test_training_goes_on_from_a_checkpoint(text_file, one_process, tmp_path):
    last = one_process / "checkpoints" / "last.ckpt"
    more = ["--strategy", "auto", "--ckpt_path", last]
    RecipeCLI(RECIPE, arguments(text_file, tmp_path, *more, steps=STEPS + 3))
    assert list(history(tmp_path, "loss")) == [STEPS + 1, STEPS + 2, STEPS + 3]


def test_global_batch_must_divide(text_file, tmp_path):
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    options = ["--strategy", "auto", "--gradient_accumulation_steps", 3]
    with pytest.raises(MisconfigurationException, match="global_batch_size=16.*multiple of 3"):
        RecipeCLI(RECIPE, arguments(text_file, tmp_path, *options))


def test_a_copied_recipe_trains_with_its_own_files(text_file, tmp_path):
    copy = tmp_path / "code"  # as in a training job, and the name of a module of the standard library
    shutil.copytree(TRAIN.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    module = copy / "module.py"
    module.write_text(module.read_text().replace('"hidden_size": 128', '"hidden_size": 96'))
    options = arguments(text_file, tmp_path / "run", "--strategy", "auto", steps=1)
    result = run_bounded([sys.executable, str(copy / "train.py"), *options], timeout=100)
    assert result.returncode == 0, result.stdout[-4000:]
    assert json.loads((tmp_path / "run" / "model" / "config.json").read_text())["hidden_size"] == 96


def test_command_lists_recipes_and_refuses_unknown_names(capsys):
    parser = argparse.ArgumentParser()
    recipe_command.add_arguments(parser)
    assert recipe_command.main(parser.parse_args([])) == 0
    assert "albert-mlm" in capsys.readouterr().out
    assert recipe_command.main(parser.parse_args(["albert", "--x"])) == 2
    assert "HINT: choose one of albert-mlm" in capsys.readouterr().err


def test_unknown_option_ends_with_one_line(capsys):
    from lightning_sagemaker.recipes.albert_mlm.train import main

    with pytest.raises(SystemExit, match="^2$"):
        main(["--learning_rat", "1"])
    assert re.match(r"error: --learning_rat .*nearest name is --learning_rate", capsys.readouterr().err)
