# SPDX-License-Identifier: Apache-2.0
"""``launch --target hyperpod``: the manifest, held to golden files and to the models of AWS's own HyperPod CLI.

``HYPERPOD_CLI_PYTHON`` names a Python that has ``sagemaker-hyperpod`` (open source), whose models refuse unknown fields.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.hyperpod import manifest
from lightning_sagemaker.launch.spec.config import JobConfig

GOLDEN = Path(__file__).parents[1] / "data" / "hyperpod"
IMAGE = "111122223333.dkr.ecr.us-west-2.amazonaws.com/training:1"
COMMANDS = {
    "script": ["train.py", "--instance-type", "ml.p5.48xlarge", "--instance-count", "4", "--epochs", "3", "--lr", "1e-4"],
    "recipe": ["bert-qa", "--instance-type", "ml.m5.xlarge", "--set", "environment.HF_HUB_OFFLINE=1",
               "--set", "hyperparameters.max_steps=100", "--set", "max_retry_attempts=5", "--set", "base_job_name=qa"],
}  # fmt: skip
_ORACLE = """
import importlib.metadata, sys, types, yaml
try:
    place = importlib.metadata.distribution("sagemaker-hyperpod").locate_file("sagemaker/hyperpod")
except importlib.metadata.PackageNotFoundError:
    sys.exit(77)
names = ["", ".hyperpod", ".hyperpod.training", ".hyperpod.training.config", ".hyperpod.common", ".hyperpod.common.config"]
for name in names:
    package = sys.modules["sagemaker" + name] = types.ModuleType("sagemaker" + name)  # without clients of Kubernetes
    package.__path__ = [str(place) + name[len(".hyperpod"):].replace(".", "/")]
from sagemaker.hyperpod.training.config.hyperpod_pytorch_job_unified_config import _HyperPodPytorchJob as Job
class Strict(Job, extra="forbid"): pass
spec = yaml.safe_load(sys.stdin)["spec"]
job = Strict.model_validate(spec, by_name=True)
try:
    Strict.model_validate({**spec, "nodes": 2}, by_name=True)
    sys.exit("an unknown field is taken")
except ValueError:
    pass
assert job.replicaSpecs[0].replicas == spec["replicaSpecs"][0]["replicas"]
assert job.runPolicy.activeDeadlineSeconds == spec["runPolicy"]["activeDeadlineSeconds"]
"""


def launch(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "launch", *words, "--target", "hyperpod"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_manifest_is_the_golden_one(name):
    program, *options = COMMANDS[name]
    done = launch(program, "--set", f"image_uri={IMAGE}", *options)
    assert done.returncode == 0, done.stderr
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(done.stdout)
    assert yaml.safe_load(done.stdout) == yaml.safe_load(golden.read_text())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_golden_one_is_one_of_aws(name):
    python = os.environ.get("HYPERPOD_CLI_PYTHON", sys.executable)
    golden = (GOLDEN / f"{name}.yaml").read_text()
    checked = subprocess.run([python, "-c", _ORACLE], input=golden, capture_output=True, text=True, check=False)
    if checked.returncode == 77 and "HYPERPOD_CLI_PYTHON" not in os.environ:
        pytest.skip("sagemaker-hyperpod not found")
    assert checked.returncode == 0, checked.stderr


def job(**values: object) -> JobConfig:
    return JobConfig.from_mapping({"entry_point": "train.py", "image_uri": IMAGE, **values})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"image_uri": None}, "without image_uri"),
        ({"use_spot_instances": True}, "use_spot_instances was set"),
        ({"inputs": {"train": "s3://bucket/x"}}, "inputs was set"),
        ({"distribution": "smp"}, "distribution='smp' was set"),
        ({"distribution": "mpi"}, "distribution='mpi' was set"),
        ({"entry_point": "train.sh"}, "train.sh was given"),
        ({"entry_point": None}, "has no program"),
        ({"base_job_name": "My_Job"}, "base_job_name='My_Job'"),
        ({"instance_type": "ml.nothing"}, "ml.nothing"),
    ],
)
def test_what_a_manifest_cannot_say_is_one_sentence(values, sentence):
    with pytest.raises(LaunchError, match=f"{sentence}.*HINT"):
        manifest(job(**values))


def test_a_variable_that_looks_like_a_secret_is_named():
    token = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3f"
    done = launch("train.py", "--set", f"image_uri={IMAGE}", "--set", f"environment.HF_TOKEN={token}")
    assert done.returncode == 0, done.stderr
    assert "warning: the variable HF_TOKEN looks like a secret" in done.stderr
    assert token not in done.stderr


def test_hyperparameters_are_written_as_in_a_training_job():
    found = manifest(job(hyperparameters={"lr": 0.1, "b": 2, "last": None}))
    args = found["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("train.py") + 1 :] == ["-b", "2", "--last", "", "--lr", "0.1"]


def test_processes_are_those_of_the_instance_or_as_asked():
    asked = {"torch_distributed": {"enabled": True, "processes_per_host": 2}}
    for distribution, number in ((None, "4"), (asked, "2")):
        found = yaml.safe_load(yaml.safe_dump(manifest(job(instance_type="ml.g5.12xlarge", distribution=distribution))))
        assert found["spec"]["nprocPerNode"] == number
        assert (
            f"--nproc-per-node={number}"
            in found["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"][0]["args"]
        )
