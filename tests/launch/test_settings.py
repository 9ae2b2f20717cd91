# SPDX-License-Identifier: Apache-2.0
"""Values of an estimator that are set after it was made, its session among them."""

import boto3
import pytest

from lightning_sagemaker.launch import Estimator, LaunchError, PyTorch
from tests.launch.conftest import has_sdk

ONE = {"entry_point": "train.py", "instance_type": "ml.g5.xlarge", "framework_version": "2.5.1", "py_version": "py311"}


def test_a_value_that_is_set_later_is_that_of_the_next_job():
    estimator = PyTorch(**ONE, max_run=60, tags={"a": "b"})
    estimator.output_kms_key = "alias/key"
    estimator.framework_version = "2.8"
    estimator.instance_type = ["ml.p4d.24xlarge", "ml.g5.48xlarge"]
    estimator.max_run = estimator.tags = None
    estimator.tensorboard_output_config = {"s3_output_path": "s3://bucket/events"}
    config = estimator.config
    assert (config.output_kms_key, config.pytorch_version, config.max_run) == ("alias/key", "2.8", 86_400)
    assert (config.instance_type, config.other_instance_types) == ("ml.p4d.24xlarge", ("ml.g5.48xlarge",))
    assert (config.tensorboard_output_path, dict(config.tags)) == ("s3://bucket/events", {})
    assert estimator.framework_version == "2.8"
    estimator.note = "my own"
    assert estimator.note == "my own"
    with pytest.raises(LaunchError, match="max_run='x' was set"):
        estimator.max_run = "x"
    with pytest.raises(LaunchError, match="forwards signals"):
        estimator.container_entry_point = ["/bin/sh"]
    assert estimator.config == config


@pytest.fixture
def west(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return boto3.Session(region_name="us-west-2")


def test_the_job_is_planned_for_the_region_of_the_session(west):
    assert has_sdk()
    from sagemaker.core.helper.session_helper import Session

    for session in (west, Session(boto_session=west)):
        estimator = PyTorch(**ONE, sagemaker_session=session)
        assert ".us-west-2." in estimator.training_image_uri()
        assert estimator.sagemaker_session is session
        later = PyTorch(**ONE)
        assert ".us-east-1." in later.training_image_uri()
        later.sagemaker_session = session
        assert ".us-west-2." in later.training_image_uri()
    with pytest.raises(
        LaunchError, match=r"region='eu-west-1' was set, but sagemaker_session is one of us-west-2\. HINT"
    ):
        PyTorch(**ONE, sagemaker_session=west, region="eu-west-1")
    assert PyTorch(**ONE).sagemaker_session.boto_region_name == "us-east-1"


def test_a_session_that_would_not_start_the_job_that_is_meant_is_refused(west):
    """A job would be started and paid for in the account, where containers here, or a pipeline later, are meant."""
    assert has_sdk()
    from sagemaker.core.local.local_session import LocalSession
    from sagemaker.core.workflow.pipeline_context import LocalPipelineSession, PipelineSession

    for kind, why in (
        (LocalSession, "Containers are not run on this machine.*--rehearse"),
        (PipelineSession, "A job would start now.*HINT"),
        (LocalPipelineSession, "A job would start now"),
    ):
        with pytest.raises(LaunchError, match=rf"sagemaker_session is a {kind.__name__}\. {why}"):
            Estimator(recipe="albert-mlm", sagemaker_session=kind(boto_session=west))
    for other in ("us-west-2", object()):
        with pytest.raises(LaunchError, match="sagemaker_session=.* was set. HINT: give a Session"):
            Estimator(recipe="albert-mlm", sagemaker_session=other)
