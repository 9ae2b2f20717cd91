# SPDX-License-Identifier: Apache-2.0
"""The plan of a job: its strategy, what SMDDP takes, the profile of AWS."""

import pytest

from lightning_sagemaker.launch import Estimator, JobConfig, LaunchError
from lightning_sagemaker.launch.planning.plan import announced_strategy, make_plan
from tests.launch.jobs import P4D, SMDDP, SMDDP_TORCHRUN, partitions


def test_a_profile_that_is_not_there_is_one_sentence(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(LaunchError, match=r"Reading AWS's configuration.*nobody.*HINT"):
        Estimator(recipe="albert-mlm").plan()


def test_what_is_announced():
    """Strategy and reason come from the code that chooses them in the container."""

    def announce(**change):
        return announced_strategy(make_plan(JobConfig.from_mapping({**P4D, **change})))

    assert announce(distribution=SMDDP).name == "smddp"
    assert "2.6.0 is installed" in announce(distribution=SMDDP).reason
    own = announce(distribution=SMDDP, image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/own:1")
    assert (own.name, own.backend) == ("ddp", "nccl")
    assert "not installed in this image" in own.reason
    assert announce(distribution=partitions(2)).name == "smp"
    assert (announce(distribution="ddp").name, announce(distribution="ddp").backend) == ("ddp", "nccl")
    assert announce(instance_type="ml.m5.xlarge", instance_count=1).name == "single_device"


@pytest.mark.parametrize(
    "change",
    [
        {"distribution": SMDDP_TORCHRUN},
        {"distribution": SMDDP, "environment": {"SMDATAPARALLEL_OPTIMIZE_SDP": "true"}},
    ],
)
def test_the_plan_of_torchrun_does_not_promise_that_smddp_reduces(change):
    announced = announced_strategy(make_plan(JobConfig.from_mapping({**P4D, **change})))
    assert (announced.name, announced.backend) == ("ddp", "nccl")
    assert "takes AllGather, and AllReduce falls back to nccl, so nccl reduces the gradients." in announced.reason


def test_the_fabric_is_announced():
    job = {**P4D, "instance_type": "ml.g6e.12xlarge", "distribution": "ddp"}
    assert announced_strategy(make_plan(JobConfig.from_mapping(job))).backend == "nccl"
