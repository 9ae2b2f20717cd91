# SPDX-License-Identifier: Apache-2.0
"""Three interruptions of a training that logs to a real MLflow server; ``make chaos`` has fifty, of every kind."""

import subprocess
import sys

import pytest

from tests.chaos.mlflow_server import PACKAGES, Server, environment
from tests.chaos.tracked import Tracked

pytestmark = pytest.mark.skipif(not PACKAGES.is_dir(), reason="MLflow was not brought by `make test-slow`")

STEPS = 120
EVENTS = ("SIGTERM", "SIGKILL of training and sender, and its disk is lost", "SIGTERM while no answer arrives")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("mlflow"))
    yield server.wait()
    server.close()


@pytest.mark.slow  # with what it brings, a minute
@pytest.mark.timeout(600)
def test_an_interrupted_training_is_one_run(server, tmp_path):
    reference = Tracked(server, tmp_path / "left-alone", STEPS, 0)
    assert reference.finish() == []
    assert [step for step, _ in reference.series("loss")] == [*range(STEPS)]
    tracked = Tracked(server, tmp_path / "interrupted", STEPS, 3)
    assert [wrong for event in EVENTS for wrong in tracked.interrupt(event)] == []
    assert tracked.finish() == []
    assert tracked.differs(reference) == []
    assert tracked.run.data.params == {"rate": "0.1"}

    failing = Tracked(server, tmp_path / "failing", STEPS, 0)
    assert failing.start("error") == 1
    failing.send_rest()
    assert failing.run.info.status == "FAILED"
    for one in (reference, tracked, failing):
        one.close()


@pytest.mark.slow
def test_a_recipe_that_is_resumed_is_one_run(server, tmp_path):
    from mlflow.tracking import MlflowClient

    def run(steps, *more):
        options = [
            "--config",
            "tiny.yaml",
            "--strategy",
            "auto",
            "--run_dir",
            str(tmp_path / "run"),
            "--max_steps",
            steps,
        ]
        options += ["--trainer.max_epochs", "-1", "--log_every_n_steps", "1", "--max_train_samples", "160"]
        options += [
            "--max_eval_samples",
            "40",
            "--cache_dir",
            str(tmp_path / "cache"),
            "--mlflow",
            server.address,
            *more,
        ]
        command = [sys.executable, "-m", "lightning_sagemaker.cli", "run", "sequence-classification", *options]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=250, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]

    run("3")
    run("8", "--resume", "always")
    client = MlflowClient(server.address)
    experiment = client.get_experiment_by_name("sequence-classification")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    steps = sorted(one.step for one in client.get_metric_history(found.info.run_id, "loss"))
    assert steps == [*range(1, 9)]
