# SPDX-License-Identifier: Apache-2.0
"""Options after a script's name are its hyperparameters."""

import re
import sys
from pathlib import Path

import pytest

from lightning_sagemaker import cli
from lightning_sagemaker.launch import JobConfig
from tests.conftest import run_bounded


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--epochs", "3"], {"epochs": 3}),
        (["--lr=1e-4", "--name", "bert", "--version", "1.10", "--fp16", "true"], {
            "lr": "1e-4", "name": "bert", "version": "1.10", "fp16": True,
        }),
        (["--shift", "-0.5", "-n", "8"], {"shift": -0.5, "n": 8}),
        (["--spot", "--epochs", "3", "--max-run", "60"], {"epochs": 3}),
        (["--", "--config", "small.yaml", "--spot", "1"], {"config": "small.yaml", "spot": 1}),
        (["--trainer.max_epochs", "3"], {"trainer.max_epochs": 3}),
    ],
)  # fmt: skip
def test_options_after_the_script_are_its_hyperparameters(given, wanted, tmp_path, monkeypatch, capsys):
    """The oracle is ``python train.py ...`` itself: the container starts the script with the same words."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    Path("train.py").write_text("")
    assert cli.main(["launch", "train.py", *given, "--save", "job.yaml"] if "--" not in given else [
        "launch", "train.py", "--save", "job.yaml", *given,
    ]) == 0  # fmt: skip
    config = JobConfig.from_yaml("job.yaml")
    assert config.hyperparameters == wanted
    assert config.use_spot_instances == ("--spot" in given and "--" not in given)
    assert all(type(config.hyperparameters[name]) is type(value) for name, value in wanted.items())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--instance-typ", "ml.g5.xlarge"], "did you mean '--instance-type'"),
        (["--fp16"], "'--fp16' has no value"),
        (["--fp16", "--epochs", "3"], "'--fp16' has no value"),
        (["positional"], "was given 'positional'"),
    ],
)
def test_options_that_cannot_be_the_scripts_are_refused(given, wanted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert cli.main(["launch", "train.py", *given, "--dry-run"]) == 2
    assert wanted in capsys.readouterr().err


def test_the_options_of_launch_are_known_to_what_reads_the_scripts():
    from lightning_sagemaker.launch.spec.script_arguments import _OWN

    shown = run_bounded([sys.executable, "-m", "lightning_sagemaker.cli", "launch", "--help"]).stdout
    assert set(re.findall(r"^ +--([a-z-]+)", shown, re.MULTILINE)) == set(_OWN)


def test_other_commands_take_no_unknown_option(capsys):
    with pytest.raises(SystemExit):
        cli.main(["ls", "--epochs", "3"])
    assert "unrecognized arguments: --epochs 3" in capsys.readouterr().err
