# SPDX-License-Identifier: Apache-2.0
"""What the SDK has no argument for, or leaves out, and is sent all the same."""

import pytest

from lightning_sagemaker.launch import InstanceGroup, PyTorch, ShuffleConfig, TrainingInput
from lightning_sagemaker.launch.request.create import create_request
from tests.launch.seeds import ROLE

ACCOUNTS_BUCKET = "sagemaker-us-east-1-123456789012"


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trains')\n")
    for name in ("a.csv", "b.csv"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_text("1\n")


def script(**more):
    given = {"role": ROLE, "include_plugin": False, **more}
    if "instance_groups" not in given:
        given |= {"instance_type": "ml.m5.xlarge", "instance_count": 2}
    return PyTorch("train.py", framework_version="2.5.1", py_version="py311", **given)


def test_a_local_channel_keeps_its_options(source, aws, sdk):
    """Each host would otherwise train on all the data, where a share for each was announced."""
    groups = [InstanceGroup("gpu", "ml.g5.xlarge", 2), InstanceGroup("data", "ml.m5.xlarge", 1)]
    data = TrainingInput(
        "data", "ShardedByS3Key", content_type="text/csv", shuffle_config=ShuffleConfig(7), instance_groups=["data"]
    )
    estimator = script(instance_groups=groups, input_mode="FastFile")
    plan = estimator.plan({"train-1": data})
    estimator.fit(wait=False, plan=plan)
    sent = aws.requests[estimator.job_name]
    announced = create_request(plan, estimator.job_name, ACCOUNTS_BUCKET)
    assert sent["InputDataConfig"] == announced["InputDataConfig"]
    where = next(one for one in sent["InputDataConfig"] if one["ChannelName"] == "train_1")["DataSource"][
        "S3DataSource"
    ]
    assert (where["S3DataDistributionType"], where["InstanceGroupNames"]) == ("ShardedByS3Key", ["data"])
    assert [call for call in aws.calls if call == f"PUT /{where['S3Uri'].removeprefix('s3://')}/a.csv"]


def test_empty_texts_are_sent(source, aws, sdk):
    """The SDK leaves them out, and AWS refuses a tag without a value."""
    given = {"environment": {"EMPTY": ""}, "hyperparameters": {"empty": ""}, "tags": [{"Key": "empty", "Value": ""}]}
    estimator = script(**given)
    estimator.fit(wait=False)
    sent = aws.requests[estimator.job_name]
    assert sent["Environment"] == given["environment"]
    assert sent["HyperParameters"] == given["hyperparameters"]
    assert sent["Tags"] == given["tags"]


def test_code_beside_the_artifacts_is_encrypted_by_their_key(source, aws, sdk):
    """As in SDK 2: a bucket may take nothing else."""
    s3 = aws.client("s3")
    for bucket in ("of-artifacts", "of-code"):
        s3.create_bucket(Bucket=bucket)
    for bucket, wanted in (("of-artifacts", "alias/team"), ("of-code", None)):
        estimator = script(
            output_path="s3://of-artifacts/out", output_kms_key="alias/team", code_location=f"s3://{bucket}/code"
        )
        estimator.fit(wait=False, job_name=f"in-{bucket}")
        (found,) = s3.list_objects_v2(Bucket=bucket, Prefix="code/")["Contents"]
        assert s3.head_object(Bucket=bucket, Key=found["Key"]).get("SSEKMSKeyId") == wanted


def test_a_job_in_a_run_of_an_experiment_belongs_to_it(source, aws, sdk, monkeypatch):
    """`with Run(...): estimator.fit()`, as in SDK 2, which SDK 3's own trainers do not do."""
    from sagemaker.core.experiments import run

    config = {"ExperimentName": "albert", "TrialName": "Default-Run-Group-albert", "RunName": "albert-one"}

    class Run:
        experiment_config = config

    monkeypatch.setattr(run._RunContext, "_context_run", Run())
    own = {"ExperimentName": "other"}
    for given, wanted in ((None, config), (own, own)):
        estimator = script()
        estimator.fit(wait=False, experiment_config=given, job_name=f"belongs-to-{wanted['ExperimentName']}")
        assert aws.requests[estimator.job_name]["ExperimentConfig"] == wanted
