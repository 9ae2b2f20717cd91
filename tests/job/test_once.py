# SPDX-License-Identifier: Apache-2.0
"""The environment is read once in a process, and again only where it has changed."""

import os

import pytest

from lightning_sagemaker.job import SageMakerJob, SageMakerJobError, job


@pytest.fixture
def readings(monkeypatch):
    """A list with an entry for each reading of the environment; begins without any."""
    counted, assemble = [], job._assemble
    monkeypatch.setattr(job, "_assemble", lambda *args, **options: counted.append(1) or assemble(*args, **options))
    monkeypatch.setattr(job, "_of_this_process", job.Once(job._read))
    return counted


def test_it_is_read_once(readings):
    first = SageMakerJob.from_environment()
    assert all(SageMakerJob.from_environment() is first for _ in range(3))
    assert len(readings) == 1


def test_a_variable_that_was_read_is_seen_when_it_changes(readings, monkeypatch):
    before = SageMakerJob.from_environment()
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert SageMakerJob.from_environment() is before
    launched = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    for name, value in {**launched, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    after = SageMakerJob.from_environment()
    assert (before.world_size, after.world_size, after.global_rank) == (None, 2, 1)
    assert len(readings) == 2


def test_an_error_is_not_kept(readings, monkeypatch):
    monkeypatch.setenv("SM_NUM_GPUS", "many")
    for _ in range(2):
        with pytest.raises(SageMakerJobError, match="SM_NUM_GPUS"):
            SageMakerJob.from_environment()
    monkeypatch.delenv("SM_NUM_GPUS")
    assert SageMakerJob.from_environment().num_nodes == 1


def test_it_is_read_again_when_told_from_where(readings, tmp_path):
    SageMakerJob.from_environment()
    assert SageMakerJob.from_environment(os.environ) is not SageMakerJob.from_environment(root=tmp_path)
    assert len(readings) == 3
