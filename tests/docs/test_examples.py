# SPDX-License-Identifier: Apache-2.0
"""Each example runs, and does what its first lines say."""

import csv
import json
import math
import os
import re
import sys

import nbclient
import nbformat
import pytest

from tests.conftest import ROOT, fork_ranks, run_bounded

EXAMPLES = ROOT / "docs" / "examples"
LOSS = re.compile(r"step=(\d+) .*?loss=(\S+)")


def run_forked_in(folder, monkeypatch, script, *arguments):
    """What one process prints that runs an example in an empty folder."""
    monkeypatch.chdir(folder)
    output = folder / "output.txt"
    wrapper = folder / "wrapper.py"
    wrapper.write_text(
        f"import runpy, sys\nsys.stdout = open({str(output)!r}, 'w', buffering=1)\n"
        f"sys.argv = [{str(script)!r}, *sys.argv[1:]]\nsys.path[0] = {str(script.parent)!r}\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
    )
    fork_ranks(wrapper, *arguments, processes=0)
    return output.read_text()


@pytest.fixture
def run(tmp_path, monkeypatch):
    return lambda script, *arguments: run_forked_in(tmp_path, monkeypatch, EXAMPLES / script, *arguments)


def test_the_trainer_loses_the_same_on_one_process_and_on_two_simulated_hosts(run, tmp_path):
    alone = dict(LOSS.findall(run("trainer.py", "--max_steps", "40")))
    assert (tmp_path / "runs" / "trainer" / "model" / "model.pt").exists()
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "local", "--hosts", "2", "--distribution", "smddp"]
    script = ["--", sys.executable, EXAMPLES / "trainer.py", "--max_steps", "40"]
    job = run_bounded([*command, "--root", tmp_path / "job", *script], timeout=200)
    assert job.returncode == 0, job.stdout[-4000:]
    together = dict(LOSS.findall(job.stdout))
    assert list(alone) == list(together) == ["9", "19", "29", "39"]
    assert [float(together[step]) for step in alone] == pytest.approx(
        [float(loss) for loss in alone.values()], rel=1e-4
    )
    assert float(alone["39"]) < float(alone["9"]) / 4
    assert (tmp_path / "job" / "algo-1" / "model" / "model.pt").exists()


def test_the_fabric_loop_learns_and_does_not_repeat_what_is_done(run, tmp_path):
    printed = run("fabric_loop.py", "--epochs", "2")
    accuracies = [float(value) for value in re.findall(r"accuracy=(\S+)", printed)]
    assert len(accuracies) == 2
    assert accuracies[-1] > 0.8


def test_the_cli_project_takes_its_strategy_from_yaml_and_its_options_from_the_command_line(run):
    printed = run("cli_project/main.py", "--trainer.max_steps=16", "--model.hidden=2")
    losses = [float(loss) for _, loss in LOSS.findall(printed)]
    assert len(losses) == 2
    assert losses[1] < losses[0]


@pytest.mark.slow
def test_own_data_is_learnt(run, tmp_path):
    run("own_data/train.py", "--max_steps", "60")
    with (tmp_path / "runs" / "own-data" / "tickets.csv").open() as file:
        assert {row["team"] for row in csv.DictReader(file)} == {"billing", "access", "shipping"}
    output = tmp_path / "runs" / "sequence-classification" / "latest"
    labels = json.loads((output / "model" / "config.json").read_text())["label2id"]
    assert set(labels) == {"billing", "access", "shipping"}
    assert json.loads((output / "output" / "metrics.json").read_text())["val_accuracy"] > 0.9


def test_own_recipe_trains_by_its_own_loss(run, tmp_path):
    """Of twelve classes that are alike before training, the cross-entropy is log 12, and the focal loss less."""
    printed = run("own_recipe/train.py", "fit", "--max_steps=1", "--log_every_n_steps=1", "--gamma=2")
    assert float(LOSS.search(printed)[2]) == pytest.approx((1 - 1 / 12) ** 2 * math.log(12), rel=0.1)
    assert (tmp_path / "runs" / "focal-classification" / "latest" / "model" / "model.safetensors").exists()


@pytest.mark.slow
def test_the_notebook_runs_and_its_rehearsal_is_the_script(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(ROOT))
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}})
    client.execute()
    printed = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    assert re.search(r"\[1\.9\d*, .*0\.1\d*\]", "".join(printed))
    assert "ml.p4d.24xlarge" in printed[-1]


def test_every_example_is_on_the_page_and_says_how_to_run_it():
    page = (ROOT / "docs" / "examples.md").read_text()
    files = [
        path for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".yaml", ".ipynb") and "/." not in str(path)
    ]
    assert [path for path in files if f"(examples/{path.relative_to(EXAMPLES)})" not in page] == []
    for path in files:
        if '__name__ == "__main__"' in path.read_text() and path.suffix == ".py":
            for words in ("On a laptop", "Rehearsed on two simulated hosts", "On SageMaker", path.name):
                assert words in path.read_text(), f"{path.name}: {words}"
