# SPDX-License-Identifier: Apache-2.0
import pytest

from lightning_sagemaker.commands import supervise
from lightning_sagemaker.job import SageMakerJobError


def test_ranks_of_another_launcher_count_in_a_job_only(monkeypatch):
    """It gives ranks their own, as torchrun does."""
    for name, value in {"RANK": "5", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert supervise._job().global_rank is None
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    with pytest.raises(SageMakerJobError, match="RANK=5 is out of range"):
        supervise._job()
