# SPDX-License-Identifier: Apache-2.0
"""``lightning-sagemaker launch``: help, saved jobs, options that override a file's."""

import json
import resource
import sys

from lightning_sagemaker import cli
from lightning_sagemaker.launch import JobConfig
from tests.conftest import run_bounded


def seconds_of_children() -> float:
    """Processor time, which other tests beside this one do not take."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_instant_and_a_job_can_be_saved(tmp_path, capsys):
    seconds = []
    for _ in range(4):
        begin = seconds_of_children()
        shown = run_bounded([sys.executable, "-m", "lightning_sagemaker.cli", "launch", "--help"]).stdout
        seconds.append(seconds_of_children() - begin)
    assert "--dry-run" in shown
    assert min(seconds) < 0.5
    path = tmp_path / "job.yaml"
    command = ["launch", "bert-qa", "--instance-type", "ml.g5.12xlarge", "--set", "hyperparameters.max_steps=7"]
    assert (
        cli.main([*command, "--set", "environment.A=1", "--channel", "train=s3://bucket/x", "--save", str(path)]) == 0
    )
    config = JobConfig.from_yaml(path)
    assert (config.recipe, config.hyperparameters, config.environment) == ("bert-qa", {"max_steps": 7}, {"A": "1"})
    capsys.readouterr()
    assert cli.main(["launch", "--config", str(path), "--region", "us-east-1", "--dry-run", "--spot"]) == 0
    request = json.loads(capsys.readouterr().out)
    assert request["EnableManagedSpotTraining"]
    assert request["HyperParameters"] == {"max_steps": "7"}
    assert cli.main(["launch", "bert-qq", "--dry-run"]) == 2
    assert "did you mean 'bert-qa'" in capsys.readouterr().err
