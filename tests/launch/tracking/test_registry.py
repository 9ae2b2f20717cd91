# SPDX-License-Identifier: Apache-2.0
"""From a job to a model package, against moto's registry; requests are checked against botocore's model of the API."""

import json
import shlex

import pytest
from botocore.model import ServiceModel
from botocore.session import get_session
from botocore.validate import ParamValidator

from lightning_sagemaker import cli
from lightning_sagemaker.launch.tracking.registry import git_source
from tests.launch.seeds import ROLE

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/serve:1"
TYPES = ["--instance-type", "ml.p4d.24xlarge", "--role", ROLE, "--yes", "--poll", "0.1"]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "train.py"
    path.write_text("print('trained')\n")
    return str(path)


@pytest.fixture
def jobs(aws, sdk):
    """The service, whose jobs complete at once with two metrics."""

    def complete(request):
        job = aws.jobs[request["TrainingJobName"]]
        values = {"val_loss": 0.25, "val_f1": 0.875}
        job["FinalMetricDataList"] = [
            {"MetricName": name, "Value": value, "Timestamp": 1.7e9} for name, value in values.items()
        ]
        return "Completed", ""

    aws.run_job = complete
    yield aws
    aws.run_job = None


def checked(request):
    model = ServiceModel(get_session().get_component("data_loader").load_service_model("sagemaker", "service-2"))
    report = ParamValidator().validate(request, model.operation_model("CreateModelPackage").input_shape)
    assert not report.has_errors(), report.generate_report()
    return request


def test_a_job_that_succeeds_is_registered(jobs, script, capsys):
    registered = ["--register", "fraud-models", "--inference-image", IMAGE]
    assert cli.main(["launch", script, *TYPES, *registered]) == 0
    out = capsys.readouterr().out
    assert "(PendingManualApproval)" in out
    client = jobs.client("sagemaker")
    (package,) = client.list_model_packages(ModelPackageGroupName="fraud-models")["ModelPackageSummaryList"]
    found = client.describe_model_package(ModelPackageName=package["ModelPackageArn"])
    name = next(line.split()[1] for line in out.splitlines() if line.startswith("started:"))
    assert found["ModelApprovalStatus"] == "PendingManualApproval"
    (container,) = found["InferenceSpecification"]["Containers"]
    assert container["Image"] == IMAGE
    assert container["ModelDataUrl"] == jobs.jobs[name]["ModelArtifacts"]["S3ModelArtifacts"]
    assert found["InferenceSpecification"]["SupportedContentTypes"] == ["application/json"]
    assert found["MetadataProperties"]["GeneratedBy"] == jobs.jobs[name]["TrainingJobArn"]
    properties = found["CustomerMetadataProperties"]
    assert {"training_job": name, "val_loss": "0.25", "val_f1": "0.875"}.items() <= properties.items()
    place = found["ModelMetrics"]["ModelQuality"]["Statistics"]["S3Uri"]
    bucket, _, key = place.removeprefix("s3://").partition("/")
    body = json.loads(jobs.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read())
    assert body == {"training_job": name, "metrics": {"val_loss": 0.25, "val_f1": 0.875}}

    # A second one of the same group is its second version.
    assert cli.main(["register", name, "fraud-models", "--commit", "abc"]) == 0
    packages = client.list_model_packages(ModelPackageGroupName="fraud-models")["ModelPackageSummaryList"]
    assert sorted(one["ModelPackageVersion"] for one in packages) == [1, 2]


def test_without_waiting_it_is_said_how_to_register_later(jobs, script, capsys):
    assert cli.main(["launch", script, *TYPES, "--register", "later-models", "--no-wait"]) == 0
    out = capsys.readouterr().out
    command = shlex.split(out.split("`")[1])
    assert command[:2] == ["lightning-sagemaker", "register"]
    assert "ModelPackage" not in "".join(jobs.calls[-3:])
    assert cli.main([*command[1:], "--dry-run"]) == 0
    request = checked(json.loads(capsys.readouterr().out))
    assert request["ModelPackageGroupName"] == "later-models"
    assert cli.main(command[1:]) == 0
    assert "registered: arn:aws" in capsys.readouterr().out


def test_a_dry_run_shows_both_requests(script, capsys):
    assert cli.main(["launch", script, *TYPES[:4], "--dry-run", "--register", "models"]) == 0
    shown = json.loads(capsys.readouterr().out)
    package = checked(shown["CreateModelPackage"])
    (container,) = package["InferenceSpecification"]["Containers"]
    assert container["Image"] == shown["CreateTrainingJob"]["AlgorithmSpecification"]["TrainingImage"]


def test_a_job_that_fails_is_not_registered(jobs, script, capsys):
    jobs.run_job = lambda request: ("Failed", "AlgorithmError: no such column")
    assert cli.main(["launch", script, *TYPES, "--register", "failed-models"]) == 1
    out = capsys.readouterr().out
    name = next(line.split()[1] for line in out.splitlines() if line.startswith("started:"))
    assert cli.main(["register", name, "failed-models"]) == 2
    assert "is Failed, so there is no model to register" in capsys.readouterr().err
    groups = jobs.client("sagemaker").list_model_package_groups()["ModelPackageGroupSummaryList"]
    assert "failed-models" not in [group["ModelPackageGroupName"] for group in groups]


def test_a_registry_that_refuses_leaves_a_command(jobs, script, capsys):
    jobs.errors["CreateModelPackage"] = (400, "AccessDeniedException", "not authorized")
    try:
        assert cli.main(["launch", script, *TYPES, "--register", "models"]) == 1
    finally:
        del jobs.errors["CreateModelPackage"]
    said = capsys.readouterr()
    assert "was not registered" in said.err
    assert "`lightning-sagemaker register train-" in said.err


def test_wrong_names_are_refused_before_anything_is_started(script, capsys):
    assert cli.main(["launch", script, *TYPES, "--register", "a group"]) == 2
    assert "1 to 63 letters" in capsys.readouterr().err


def test_the_source_is_named_without_passwords(tmp_path):
    import subprocess

    run = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*run, "init", "-q"], check=True)
    subprocess.run([*run, "remote", "add", "origin", "https://me:secret@example.com/a.git"], check=True)
    subprocess.run([*run, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
    from lightning_sagemaker.launch.spec.config import JobConfig

    source = git_source(JobConfig.from_mapping({"entry_point": "train.py", "source_dir": str(tmp_path)}))
    assert source["Repository"] == "https://example.com/a.git"
    assert len(source["CommitId"]) == 40
