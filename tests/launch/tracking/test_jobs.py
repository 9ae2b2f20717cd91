# SPDX-License-Identifier: Apache-2.0
"""A job as SDK 2's programs hold it: ``estimator.latest_training_job``, kept and asked again."""

import threading

import pytest

from lightning_sagemaker.launch import Estimator, LaunchError
from tests.launch.seeds import ROLE


@pytest.fixture
def started(aws, sdk):
    """Starts a job that ends when it is told how."""
    ended, end = threading.Event(), []

    def run(request):
        assert ended.wait(60)
        return end[0]

    def finish(*result):
        end.append(result)
        ended.set()

    aws.run_job = run
    estimator = Estimator(recipe="albert-mlm", role=ROLE, instance_type="ml.m5.xlarge")
    estimator.fit(wait=False)
    yield estimator.latest_training_job, finish
    ended.set()
    aws.run_job = None


def test_a_job_that_is_kept_is_asked_again(started):
    """A program that asks until the job has ended would ask for ever."""
    job, finish = started
    assert job.describe()["TrainingJobStatus"] == "InProgress"
    finish("Completed", "")
    assert job.wait(logs="None", poll=0.05).status == "Completed"
    assert job.describe()["TrainingJobStatus"] == "Completed"
    assert job.status == "InProgress"  # what it was when it was asked
    assert job.rule_job_summary() == []


def test_a_job_that_fails_fails_the_wait(started):
    job, finish = started
    finish("Failed", "AlgorithmError: out of memory")
    with pytest.raises(LaunchError, match="failed: AlgorithmError: out of memory.*HINT"):
        job.wait(logs=["None"], poll=0.05)


def test_a_job_that_is_kept_can_be_stopped(started):
    job, finish = started
    job.stop()
    finish("Completed", "")
    assert job.wait(logs="None", poll=0.05).status == "Stopped"
