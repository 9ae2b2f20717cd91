# SPDX-License-Identifier: Apache-2.0
"""Where there is no capacity, a job's other instance types and regions are tried, with the same processes and source."""

import json
import re
import tarfile

import boto3
import pytest

from lightning_sagemaker import cli
from lightning_sagemaker.launch import Estimator, LaunchError
from lightning_sagemaker.launch.aws import lacks_capacity
from lightning_sagemaker.launch.planning import instances
from lightning_sagemaker.launch.planning.alternatives import alternative_configs, over_limit
from lightning_sagemaker.launch.planning.plan import make_plan
from lightning_sagemaker.launch.planning.report import describe
from lightning_sagemaker.launch.spec.config import JobConfig
from tests.launch.service import ROLE, _error

TYPES = ["ml.p4d.24xlarge", "ml.g5.12xlarge", "ml.g5.48xlarge"]
JOB = {"entry_point": "train.py", "role": ROLE, "distribution": "ddp", "include_plugin": False, "max_run": 3600}
REASON = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type."
)


@pytest.fixture
def scarce(aws, sdk, tmp_path, monkeypatch):
    """``scarce(at_once=..., later=...)``: types that are refused when a job is made, and when it waits for its hosts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    (tmp_path / "train.py").touch()
    make, asked = aws._CreateTrainingJob, []

    def limits(at_once=(), later=()):
        def create(body):
            kind = body["ResourceConfig"]["InstanceType"]
            asked.append(
                (kind, body["ResourceConfig"]["InstanceCount"], body["AlgorithmSpecification"]["TrainingImage"])
            )
            if kind in at_once:
                return _error(400, "ResourceLimitExceeded", "The account-level service limit is 0 Instances")
            return make(body)

        def run(request):
            kind = request["ResourceConfig"]["InstanceType"]
            return ("Failed", REASON) if kind in later else ("Completed", "")

        monkeypatch.setattr(aws, "_CreateTrainingJob", create)
        monkeypatch.setattr(aws, "run_job", run)
        return asked

    return limits


def test_lists_are_read_and_the_number_of_processes_is_kept():
    config = JobConfig.from_mapping(
        {**JOB, "instance_type": TYPES, "instance_count": 2, "region": "us-east-1, eu-west-1"}
    )
    assert [(one.instance_type, one.instance_count, one.region) for one in alternative_configs(config)] == [
        ("ml.p4d.24xlarge", 2, "us-east-1"), ("ml.g5.12xlarge", 4, "us-east-1"), ("ml.g5.48xlarge", 2, "us-east-1"),
        ("ml.p4d.24xlarge", 2, "eu-west-1"), ("ml.g5.12xlarge", 4, "eu-west-1"), ("ml.g5.48xlarge", 2, "eu-west-1"),
    ]  # fmt: skip
    alone = JobConfig.from_mapping({**JOB, "distribution": None, "instance_type": TYPES, "instance_count": 2})
    assert [one.instance_count for one in alternative_configs(alone)] == [2, 2, 2]
    for kinds, wanted in (
        (["ml.g5.xlarge", "ml.g5.12xlarge"], "the global batch size would change"),
        (["ml.g5.xlarge", "ml.m5.xlarge"], "one of which has no GPU"),
        (["ml.g5.xlarge", "ml.g5.xlarg"], "did you mean 'ml.g5.xlarge'"),
    ):
        with pytest.raises(LaunchError, match=f"{wanted}.*"):
            alternative_configs(JobConfig.from_mapping({**JOB, "instance_type": kinds}))


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"region": "us-east-1,us-mars-1"}, "no image of pytorch-training .* in region 'us-mars-1'"),
        ({"instance_type": ["ml.g5.12xlarge", "ml.g5.moon"]}, "'ml.g5.moon' is not a SageMaker training instance"),
    ],
)
def test_a_plan_is_not_shown_before_all_alternatives_are_checked(job, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(LaunchError, match=said):
        describe(make_plan(JobConfig.from_mapping({**JOB, "instance_type": "ml.g5.12xlarge", **job})))


def test_options_replace_the_lists_of_a_file(tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(
        f"entry_point: {tmp_path}/train.py\ninstance_type: [ml.g5.xlarge, ml.g6.xlarge]\n"
    )
    saved = tmp_path / "saved.yaml"
    for more, wanted in (
        ([], ("ml.g5.xlarge", ("ml.g6.xlarge",))),
        (["--instance-type", "ml.g4dn.xlarge"], ("ml.g4dn.xlarge", ())),
        (["--set", "instance_type=ml.g4dn.xlarge,ml.g5.xlarge"], ("ml.g4dn.xlarge", ("ml.g5.xlarge",))),
    ):
        assert cli.main(["launch", "--config", str(tmp_path / "job.yaml"), *more, "--save", str(saved)]) == 0
        config = JobConfig.from_yaml(saved)
        assert (config.instance_type, config.other_instance_types) == wanted


def test_a_job_of_ones_own_that_speaks_of_capacity_is_no_want_of_it():
    assert lacks_capacity(REASON)
    assert lacks_capacity(
        "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error."
    )
    assert not lacks_capacity("ValueError: DiskCapacityError, insufficient capacity of the queue")
    assert not lacks_capacity(None)


def test_the_next_is_tried_with_the_same_source_and_checkpoints(scarce, aws, caplog):
    asked = scarce(at_once=TYPES[:1], later=TYPES[1:2])
    job = {**JOB, "instance_type": TYPES, "instance_count": 2, "use_spot_instances": True}
    estimator = Estimator(**job)
    plan = estimator.plan()
    estimator.fit(plan=plan, poll=0.05, logs=False, job_name="my-job")
    assert [(kind, count) for kind, count, _ in asked] == [(TYPES[0], 2), (TYPES[1], 4), (TYPES[2], 2)]
    assert estimator.job_name == "my-job-3"
    sent = [aws.requests[name] for name in ("my-job-2", "my-job-3")]
    assert len({one["CheckpointConfig"]["S3Uri"] for one in sent}) == 1
    codes = [one["DataSource"]["S3DataSource"]["S3Uri"] for request in sent for one in request["InputDataConfig"]]
    assert {code.rpartition("/")[2] for code in codes if "source-" in code} == {plan.bundle.name}
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if text.startswith("next: ")] == [
        "next: 4 x ml.g5.12xlarge in us-east-1", "next: 2 x ml.g5.48xlarge in us-east-1",
    ]  # fmt: skip
    assert any(
        "no capacity for 2 x ml.p4d.24xlarge in us-east-1: Creating the job failed: Resource" in text for text in said
    )
    assert any("no capacity for 4 x ml.g5.12xlarge in us-east-1: CapacityError: Unable" in text for text in said)


def test_other_failures_and_the_last_are_the_jobs_own(scarce, aws, monkeypatch):
    asked = scarce(later=TYPES)
    with pytest.raises(LaunchError, match="failed: CapacityError: Unable to provision"):
        Estimator(**JOB, instance_type=TYPES[:2]).fit(poll=0.05, logs=False)
    assert len(asked) == 2
    assert all(len(name) <= 63 for name in aws.requests)
    monkeypatch.setattr(aws, "run_job", lambda request: ("Failed", "ValueError: no such column"))
    with pytest.raises(LaunchError, match="failed: ValueError: no such column"):
        Estimator(**JOB, instance_type=TYPES[:2]).fit(poll=0.05, logs=False)
    assert len(asked) == 3
    scarce(at_once=TYPES)
    with pytest.raises(LaunchError, match=r"None of 2 configurations could be started; the last: .*HINT: "):
        Estimator(**JOB, instance_type=TYPES[:2]).fit(wait=False)


def test_nothing_over_the_limit_of_cost_is_started(scarce, capsys):
    asked = scarce(at_once=["ml.g5.12xlarge"])
    command = [
        "launch",
        "train.py",
        "--instance-type",
        "ml.p4d.24xlarge,ml.g5.12xlarge,ml.p5en.48xlarge,ml.g5.48xlarge",
    ]
    command += ["--distribution", "ddp", "--role", ROLE, "--max-run", "3600", "--yes", "--poll", "0.05"]
    command += ["--set", "include_plugin=false"]
    assert cli.main([*command, "--max-cost", "21"]) == 0
    shown = capsys.readouterr().out
    assert [kind for kind, _, _ in asked] == ["ml.g5.12xlarge", "ml.g5.48xlarge"]
    assert "not starting 1 x ml.p4d.24xlarge in us-east-1: it may cost $25.25, and max_cost is $21.00" in shown
    assert "ml.p5en.48xlarge in us-east-1: the price of ml.p5en.48xlarge is unknown" in shown
    assert "otherwise     2 x ml.g5.12xlarge in us-east-1" in shown
    assert cli.main([*command, "--max-cost", "1"]) == 2
    assert "None of 4 configurations could be started" in capsys.readouterr().err
    assert len(asked) == 2


def test_what_a_limit_of_cost_covers(monkeypatch, tmp_path):
    """As ``at most`` promises: on demand, the time in a warm pool, and only with prices of the job's region."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-refreshed-prices"))
    (tmp_path / "train.py").touch()
    job = {
        **JOB,
        "entry_point": str(tmp_path / "train.py"),
        "instance_type": "ml.g5.xlarge",
        "region": "us-west-2",
        "max_cost": 1.5,
    }
    for change, why in (
        ({}, None),
        ({"use_spot_instances": True}, None),
        ({"use_spot_instances": True, "max_run": 7200}, r"may cost \$2\.82"),
        ({"keep_alive_period_in_seconds": 1800}, r"may cost \$2\.11"),
        ({"region": "eu-west-1"}, "the prices of eu-west-1 are unknown"),
    ):
        found = over_limit(make_plan(JobConfig.from_mapping({**job, **change})))
        assert found is None if why is None else re.search(why, found), found


def test_another_region_has_its_own_image_and_bucket(scarce, aws, sdk):
    asked = scarce()
    refused = []

    def create(body):
        image = body["AlgorithmSpecification"]["TrainingImage"]
        if "us-east-1" in image and not refused.append(image):
            return _error(400, "CapacityError", "no capacity")
        return type(aws)._CreateTrainingJob(aws, body)

    aws._CreateTrainingJob = create
    estimator = Estimator(**JOB, instance_type="ml.g5.12xlarge", region=["us-east-1", "eu-west-1"])
    estimator.fit(wait=False)
    request = aws.requests[estimator.job_name]
    assert len(refused) == 1
    assert ".eu-west-1." in request["AlgorithmSpecification"]["TrainingImage"]
    assert json.dumps(request["InputDataConfig"]).count("sagemaker-eu-west-1-") == 2
    assert estimator.jobs.session.region_name == "eu-west-1"
    assert asked == []


def test_a_new_instance_type_is_known_after_a_refresh(aws, tmp_path, monkeypatch):
    """EC2 in moto lists what AWS's does; one type is unknown to the table until it was read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before, kept = dict(instances.INSTANCES), instances.INSTANCES.pop("ml.g6.xlarge")
    old = dict(instances._table())
    monkeypatch.setitem(
        instances._table(), "instances", {n: f for n, f in old["instances"].items() if n != "ml.g6.xlarge"}
    )
    with pytest.raises(LaunchError, match=rf"{old['date']}.*did you mean .*--refresh-instances"):
        instances.find_instance("ml.g6.xlarge")
    try:
        path = instances.refresh_instances("us-east-1", aws.client("ec2"))
        assert path.is_relative_to(tmp_path)
        assert instances.find_instance("ml.g6.xlarge") == kept
        assert instances.INSTANCES.keys() == before.keys()
        assert "us-east-1" in instances.instance_table_date()
        path.write_text("{}")
        instances._table.cache_clear()
        assert instances.instance_table_date().startswith(old["date"])
    finally:
        instances.INSTANCES.clear()
        instances.INSTANCES.update(before)
        instances._table.cache_clear()


def test_a_source_in_s3_is_fetched_and_looked_through(aws, tmp_path, monkeypatch):
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="sources")
    (tmp_path / "src").mkdir()
    for name in ("train.py", ".env"):
        (tmp_path / "src" / name).touch()
    with tarfile.open(tmp_path / "source.tar.gz", "w:gz") as archive:
        for path in (tmp_path / "src").iterdir():
            archive.add(path, path.name)
    s3.upload_file(str(tmp_path / "source.tar.gz"), "sources", "a/source.tar.gz")
    job = {**JOB, "region": "us-east-1", "instance_type": "ml.g5.xlarge"}
    bundle = Estimator(**job, source_dir="s3://sources/a/source.tar.gz").plan().bundle
    assert (bundle.files, bundle.left_out) == (("train.py",), {".env": "credentials"})
    with pytest.raises(LaunchError, match="is not an S3 object. HINT"):
        Estimator(**job, source_dir="s3://sources/b.tar.gz").plan()


def test_a_queue_of_batch_starts_the_job(scarce, aws, capsys):
    """The oracle for the payload is the SDK's own ``TrainingQueue``: see its ``_submit_service_job``."""
    scarce()
    command = ["launch", "train.py", "--instance-type", "ml.g5.12xlarge", "--role", ROLE, "--yes", "--poll", "0.05"]
    command += [
        "--set",
        "job_queue=training",
        "--set",
        "share_identifier=team",
        "--set",
        "tags.a=b",
        "--max-run",
        "3600",
    ]
    assert cli.main([*command, "--set", "include_plugin=false"]) == 0
    ((name, (body, _)),) = aws.queued.items()
    assert (body["jobQueue"], body["serviceJobType"], body["shareIdentifier"]) == (
        "training",
        "SAGEMAKER_TRAINING",
        "team",
    )
    assert (body["tags"], body["timeoutConfig"]) == ({"a": "b"}, {"attemptDurationSeconds": 3600})
    assert f"{name}-attempt" in aws.requests
    shown = capsys.readouterr().out
    assert f"queued: {name}" in shown
    assert shown.index("queue: RUNNABLE") < shown.index("queue: RUNNING") < shown.index(f"{name}-attempt: Completed")
    aws.queued.clear()


def test_the_queue_is_asked_as_the_sdk_asks(aws, sdk, monkeypatch):
    from sagemaker.train.aws_batch import batch_api_helper

    from lightning_sagemaker.launch.request import queue

    request = {"TrainingJobName": "one", "RoleArn": ROLE, "Tags": [{"Key": "a", "Value": "b"}]}
    monkeypatch.setattr(batch_api_helper, "get_batch_boto_client", lambda: aws.client("batch"))
    batch_api_helper._submit_service_job(
        dict(request), "one", "training", timeout={"attemptDurationSeconds": 3600}, share_identifier="team"
    )
    theirs = aws.queued.pop("one")[0]
    queue.submit(boto3.Session(region_name="us-east-1"), request, "training", "team", 3600)
    ours = aws.queued.pop("one")[0]
    for sent in (theirs, ours):
        sent["serviceRequestPayload"] = json.loads(sent["serviceRequestPayload"])
        del sent["clientToken"]  # botocore draws it
    assert ours == theirs
