# SPDX-License-Identifier: Apache-2.0
"""The diffs of docs/extending.md, applied to a copy of the source, add what the page says."""

import json
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT, run_bounded
from tests.docs.blocks import read

PAGE = "docs/extending.md"
TRY = """
import json, os, sys
import lightning_sagemaker
from lightning_sagemaker import SageMakerJob, SageMakerJobError, cli, metric_lines, select_strategy
from lightning_sagemaker.commands import doctor

def asked(**variables):
    job = SageMakerJob.from_environment(variables, root="nowhere")
    return select_strategy(job).backend, job.sources.get("plain_backend")

found = {"place": lightning_sagemaker.__file__, "chosen": asked(), "set": asked(LIGHTNING_SAGEMAKER_BACKEND="nccl")}
try:
    asked(LIGHTNING_SAGEMAKER_BACKEND="mpi")
except SageMakerJobError as error:
    found["refused"] = str(error)
found["hosts"] = cli.main(["hosts", "--first"])
os.environ |= {"TRAINING_JOB_NAME": "job", "SM_HOSTS": "["}
found["malformed"] = cli.main(["hosts"])
del os.environ["TRAINING_JOB_NAME"], os.environ["SM_HOSTS"]
os.environ["LIGHTNING_SAGEMAKER_BACKEND"] = "gloo"
found["doctor"] = doctor.examine(quick=True)["job"]["plain_backend"]
found["metrics"] = metric_lines.names_of("focal-classification")

from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.fabric import Fabric

trainer = Trainer(strategy="smddp_static_graph", devices=1, accelerator="cpu", max_steps=2, logger=False,
                  enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(BoringModel())
fabric = Fabric(strategy="smddp_static_graph", devices=1, accelerator="cpu")
found["strategies"] = [type(trainer.strategy).__name__, type(fabric.strategy).__name__]
found["static"] = [trainer.strategy._ddp_kwargs["static_graph"], fabric.strategy._ddp_kwargs["static_graph"]]
found["steps"] = trainer.global_step

steps = ["--max_steps", "2", "--max_train_samples", "64"]
steps += ["--trainer.limit_val_batches", "1", "--run_dir", sys.argv[1], "--precision", "32-true"]
cli.main(["run", "focal-classification", "fit", "--config", "tiny.yaml", *steps])
found["loss"] = json.loads(open(sys.argv[1] + "/output/metrics.json").read())["val_loss"]
print("FOUND", json.dumps(found))
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the source with all the diffs of the page."""
    folder = tmp_path_factory.mktemp("extended")
    changed = re.findall(r"^--- a/(\S+)", (ROOT / PAGE).read_text(), re.MULTILINE)
    command = ["git", "ls-files", "-z", "src", "recipes", *changed]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "src" / "lightning_sagemaker" / "recipes").symlink_to(
        folder / "recipes"
    )  # as the installed package has it
    diffs = [block.code for block in read(ROOT, PAGE) if block.language == "diff"]
    for number, diff in enumerate(diffs):
        command = ["git", "apply", "--unsafe-paths", f"--directory={folder}", "-"]
        applied = subprocess.run(command, cwd="/", input=diff, capture_output=True, text=True, timeout=30)
        assert applied.returncode == 0, (
            f"diff {number + 1} of {PAGE} does not fit the source any more: make the change of the page in a clone of the"
            " repository, and put `git diff -U1` there (with `-C --find-copies-harder` for copied files) into the page."
            f"\n{applied.stderr}"
        )
    assert len(diffs) == 4
    return folder


def test_the_diffs_fit_the_source_and_the_additions_can_be_read_by_its_linters(extended):
    check = [sys.executable, "-m", "ruff", "check", "--config", ROOT / "pyproject.toml", "--no-cache", extended]
    result = run_bounded(check)
    assert result.returncode == 0, result.stdout
    formatted = run_bounded([*check[:3], "format", "--check", *check[4:]])
    assert formatted.returncode == 0, formatted.stdout


@pytest.mark.slow
def test_what_the_diffs_add_works(extended, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(TRY)
    result = run_bounded([sys.executable, program, tmp_path / "run"], PYTHONPATH=str(extended / "src"))
    assert result.returncode == 0, result.stdout[-4000:]
    found = json.loads(result.stdout.partition("FOUND ")[2])
    assert found["place"].startswith(str(extended))
    assert (found["chosen"], found["set"]) == (["gloo", None], ["nccl", "LIGHTNING_SAGEMAKER_BACKEND"])
    assert "LIGHTNING_SAGEMAKER_BACKEND=mpi was set. HINT:" in found["refused"]
    assert (found["hosts"], found["malformed"]) == (0, 2)
    assert "lightning-sagemaker hosts: error: SM_HOSTS is not valid JSON" in result.stdout
    assert found["doctor"] == {"value": "gloo", "source": "LIGHTNING_SAGEMAKER_BACKEND"}
    assert found["metrics"][-4:] == ["val_loss", "val_accuracy", "test_loss", "test_accuracy"]
    assert found["strategies"] == ["SMDDPStrategy", "FabricSMDDPStrategy"]
    assert (found["static"], found["steps"]) == ([True, True], 2)
    assert 0 < found["loss"] < 3


@pytest.mark.slow
def test_the_recipe_of_the_page_passes_the_tests_of_help(extended):
    tests = [
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        "-q",
        "-k",
        "focal-classification",
        ROOT / "tests/recipes/test_help.py",
    ]
    result = run_bounded([sys.executable, "-m", "pytest", *tests], PYTHONPATH=str(extended / "src"))
    assert result.returncode == 0, f"the recipe of {PAGE} is not one of this project:\n{result.stdout[-4000:]}"
    assert "3 passed" in result.stdout
