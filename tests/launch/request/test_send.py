# SPDX-License-Identifier: Apache-2.0
"""What is sent to AWS, over HTTP, by the real SageMaker SDK: equal to what was announced, and to the golden file."""

import importlib.metadata
import io
import json
import tarfile
import threading
import time

import boto3
import pytest
from packaging.requirements import Requirement

from lightning_sagemaker.launch import (
    Estimator,
    InstanceGroup,
    LaunchError,
    ShuffleConfig,
    TensorBoardOutputConfig,
    TrainingInput,
)
from lightning_sagemaker.launch.request.create import create_request
from lightning_sagemaker.launch.tracking.jobs import TrainingJobs
from lightning_sagemaker.launch.transfer import split_uri
from tests.conftest import ROOT
from tests.launch.golden import FILE, expected, plain
from tests.launch.real_containers import CONTAINERS
from tests.launch.seeds import CASES, ROLE, make

GOLDEN = json.loads(FILE.read_text())
ANEW = f"if this is intended, run `python -m tests.launch.golden` and review the diff of {FILE.relative_to(ROOT)}"
SMALL = {"recipe": "albert-mlm", "role": ROLE, "instance_type": "ml.m5.xlarge"}


def golden(case):
    assert case in GOLDEN, f"{FILE.relative_to(ROOT)} has no request of {case!r}: run `python -m tests.launch.golden`"
    return GOLDEN[case]


def uploads(aws, begin):
    return [call for call in aws.calls[begin:] if call.startswith("PUT /sagemaker-us-east-1-123456789012/")]


@pytest.mark.parametrize("case", CASES)
def test_without_the_sdk_the_request_is_the_golden_one(case, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert plain(expected(case, tmp_path)) == golden(case), ANEW


@pytest.mark.parametrize("case", CASES)
def test_the_sdk_sends_what_was_announced(case, tmp_path, aws, sdk):
    estimator, inputs = make(case, tmp_path)
    begin = len(aws.calls)
    estimator.fit(inputs, wait=False)
    sent = aws.requests[estimator.job_name]
    assert plain(sent) == golden(case), ANEW
    assert [call for call in uploads(aws, begin) if "/input/code/source-" in call]
    assert estimator.latest_training_job.status in ("InProgress", "Completed")
    assert estimator.model_data.endswith(f"{estimator.job_name}/output/model.tar.gz")
    # The archive in S3 is the one that was announced, and its program is in it.
    source = next(one for one in sent["InputDataConfig"] if one["ChannelName"] == "code")
    bucket, _, key = source["DataSource"]["S3DataSource"]["S3Uri"].removeprefix("s3://").partition("/")
    content = aws.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    plan = estimator.plan(inputs)
    assert plan.bundle.name == key.rpartition("/")[2]
    assert content == plan.bundle.content
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert plan.bundle.entry_script in archive.getnames()
        has_plugin = any(name.endswith(".whl") for name in archive.getnames())
    assert has_plugin == (" " in case)  # the images of the seeds are older than this package


def test_everything_that_can_be_set_is_sent(tmp_path, aws, sdk):
    """Beside what the golden cases set."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("text,label\n")
    arguments = {
        **SMALL,
        "volume_size": 77,
        "tags": [{"Key": "team", "Value": "text"}],
        "environment": {"HF_HUB_OFFLINE": "1"},
        "checkpoint_s3_uri": "s3://bucket/run",
        "output_path": "s3://bucket/out",
        "output_kms_key": "alias/key",
        "encrypt_inter_container_traffic": True,
        "subnets": ["subnet-1"],
        "security_group_ids": ["sg-1"],
        "keep_alive_period": 600,
        "max_retry_attempts": 3,
        "tensorboard_output_path": "s3://bucket/events",
        "max_run": 3600,
    }
    inputs = {
        "local": str(tmp_path / "data"),
        "stream": {"s3_data": "s3://bucket/data/", "input_mode": "FastFile", "distribution": "ShardedByS3Key"},
        "shared": {"file_system_id": "fs-01234567", "file_system_type": "EFS", "directory_path": "/data"},
    }
    estimator = Estimator(**arguments)
    plan = estimator.plan(inputs)
    estimator.fit(inputs, wait=False, plan=plan)
    sent = aws.requests[estimator.job_name]
    assert sent == create_request(plan, estimator.job_name, "sagemaker-us-east-1-123456789012")
    assert sent["CheckpointConfig"]["S3Uri"] == "s3://bucket/run/"
    assert sent["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 600
    assert any(call.endswith("/input/local/train.csv") for call in aws.calls)


@pytest.mark.parametrize(("period", "sent"), [(0, {}), (600, {"KeepAlivePeriodInSeconds": 600})])
def test_a_warm_pool_of_no_time_is_left_out(period, sent):
    job = {"recipe": "albert-mlm", "region": "us-east-1", "instance_type": "ml.p4d.24xlarge", "include_plugin": False}
    resources = Estimator(**job, role="arn:aws:iam::123456789012:role/train", keep_alive_period=period).request()
    assert {name: value for name, value in resources["ResourceConfig"].items() if "KeepAlive" in name} == sent


def test_every_word_of_sdk_2_is_sent_by_sdk_3(tmp_path, aws, sdk):
    """What the calls in ``test_sdk2.py`` come to without the SDK is what the SDK sends."""
    arguments = {
        "code_location": "s3://bucket/code",
        "container_log_level": 10,
        "debugger_hook_config": {"HookParameters": {"train.save_interval": "10"}},
        "debugger_rules": [{
            "RuleConfigurationName": "Overfit", "RuleEvaluatorImage": "DEFAULT_RULE_EVALUATOR_IMAGE",
            "RuleParameters": {"rule_to_invoke": "Overfit"},
        }],
        "disable_output_compression": True,
        "enable_infra_check": True,
        "enable_remote_debug": True,
        "enable_sagemaker_metrics": False,
        "enable_session_tag_chaining": False,
        "hyperparameters": {"prompt": "it's", "version": "1.10", "layers": [1, 2], "trainer.max_epochs": 3, "none": None},
        "input_mode": "FastFile",
        "instance_groups": [InstanceGroup("gpu", "ml.g5.xlarge", 2)],
        "instance_placement_config": {
            "EnableMultipleJobs": True, "PlacementSpecifications": [{"UltraServerId": "us-1", "InstanceCount": 1}],
        },
        "model_uri": "s3://bucket/weights/",
        "profiler_config": {"ProfilingIntervalInMilliseconds": 500},
        "profiler_rules": [{"RuleConfigurationName": "a", "RuleEvaluatorImage": "DEFAULT_RULE_EVALUATOR_IMAGE"}],
        "role": "training",
        "tensorboard_output_config": TensorBoardOutputConfig("s3://bucket/events", "/opt/ml/output/mine"),
        "training_plan": "arn:aws:sagemaker:us-east-1:123456789012:training-plan/a",
        "training_repository_access_mode": "Vpc",
        "training_repository_credentials_provider_arn": "arn:aws:lambda:us-east-1:123456789012:function:login",
        "volume_kms_key": "alias/key",
    }  # fmt: skip
    inputs = {
        "labels-1": TrainingInput(
            "s3://bucket/labels.manifest", record_wrapping="RecordIO", s3_data_type="AugmentedManifestFile",
            input_mode="Pipe",
            attribute_names=["source-ref", "label"], shuffle_config=ShuffleConfig(7), instance_groups=["gpu"],
        ),
        "train": TrainingInput("s3://bucket/data/", "ShardedByS3Key", "Gzip", "text/csv", instance_groups=["gpu"]),
    }  # fmt: skip
    (tmp_path / "train.py").write_text("print('trains')\n")
    aws.client("s3").create_bucket(Bucket="bucket")
    estimator = Estimator("train.py", source_dir=str(tmp_path), **arguments)
    plan = estimator.plan(inputs)
    begin, experiment = len(aws.calls), {"ExperimentName": "albert"}
    estimator.fit(inputs, wait=False, job_name="my-own-name", experiment_config=experiment, plan=plan)
    assert estimator.job_name == "my-own-name"
    sent = aws.requests["my-own-name"]
    announced = create_request(
        plan.changed(experiment_config=experiment), "my-own-name", "sagemaker-us-east-1-123456789012"
    )
    for request in (sent, announced):  # role: asked of IAM; drivers: below the name that the SDK made
        request["RoleArn"] = request["RoleArn"].replace("111122223333", "123456789012")
        for channel in request["InputDataConfig"]:
            if channel["ChannelName"] == "sm_drivers":
                channel["DataSource"]["S3DataSource"].pop("S3Uri")
    assert sent == announced
    assert [call for call in aws.calls[begin:] if call.startswith("PUT /bucket/code/my-own-name/source/source-")]


def test_the_users_session_is_what_sends(aws, sdk):
    """Its bucket, the folder in it, its region and its own client of SageMaker."""
    aws.client("s3").create_bucket(Bucket="of-the-team")
    own, names = boto3.client("sagemaker"), []

    class Client:
        def __getattr__(self, name):
            names.append(name)
            return getattr(own, name)

    session = sdk.Session(sagemaker_client=Client(), default_bucket="of-the-team", default_bucket_prefix="text/albert")
    estimator = Estimator(**SMALL, sagemaker_session=session, use_spot_instances=True)
    estimator.fit(wait=False)
    sent = aws.requests[estimator.job_name]
    base = sent["OutputDataConfig"]["S3OutputPath"]
    assert base.startswith("s3://of-the-team/text/albert/albert-mlm-")
    assert sent["CheckpointConfig"]["S3Uri"] == f"{base}/checkpoints/"
    assert all(one["DataSource"]["S3DataSource"]["S3Uri"].startswith(base) for one in sent["InputDataConfig"])
    assert estimator.latest_training_job.name == estimator.job_name
    assert {"create_training_job", "describe_training_job"} <= set(names)


def test_a_source_in_s3_is_fetched_by_the_users_session(tmp_path, aws, sdk, monkeypatch):
    """Whose credentials, such as those of a profile, may be the only ones that can read it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        content = tarfile.TarInfo("train.py")
        archive.addfile(content, io.BytesIO())
    aws.client("s3").create_bucket(Bucket="sources")
    aws.client("s3").put_object(Bucket="sources", Key="source.tar.gz", Body=packed.getvalue())
    session = boto3.Session("of-the-profile", "secret", region_name="us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    given = {"entry_point": "train.py", "source_dir": "s3://sources/source.tar.gz", "include_plugin": False}
    with pytest.raises(LaunchError, match="no AWS credentials"):
        Estimator(**given).plan()
    assert Estimator(**given, sagemaker_session=session).plan().bundle.files == ("train.py",)


def test_model_trainer_takes_our_distributions(tmp_path, aws, sdk):
    """For those who use the SDK's own class: SMDDP, which it has none of, and model parallelism."""
    from sagemaker.core.training.configs import Compute, SourceCode

    from lightning_sagemaker.launch import SMDDP, ModelParallel

    (tmp_path / "train.py").write_text("print('trains')\n")
    for distributed, wanted in (
        (SMDDP(process_count_per_node=8), {"distribution": "smddp", "process_count_per_node": 8, "smp": None}),
        (ModelParallel(parameters={"partitions": 2}), {"distribution": "smp", "smp": {"partitions": 2}}),
    ):
        trainer = sdk.ModelTrainer(
            sagemaker_session=sdk.make_session(None, "us-east-1"),
            role=ROLE,
            base_job_name=f"own-{wanted['distribution']}",
            training_image="123456789012.dkr.ecr.us-east-1.amazonaws.com/own:1",
            source_code=SourceCode(source_dir=str(tmp_path), entry_script="train.py"),
            distributed=distributed,
            compute=Compute(instance_type="ml.p4d.24xlarge", instance_count=2),
        )
        trainer.train(wait=False, logs=False)
        name = trainer._latest_training_job.training_job_name
        prefix = f"own-{wanted['distribution']}/{name}/input/sm_drivers/"
        s3, bucket = aws.client("s3"), "sagemaker-us-east-1-123456789012"
        config = json.loads(s3.get_object(Bucket=bucket, Key=f"{prefix}distributed.json")["Body"].read())
        assert {key: config[key] for key in wanted} == wanted
        script = s3.get_object(Bucket=bucket, Key=f"{prefix}sm_train.sh")["Body"].read().decode()
        assert "distributed_drivers/lightning_driver.py" in script
        assert s3.get_object(Bucket=bucket, Key=f"{prefix}distributed_drivers/lightning_driver.py")


def test_our_distributions_are_taken_by_the_estimator(sdk):
    from lightning_sagemaker.launch import SMDDP

    arguments = {**SMALL, "instance_type": "ml.p4d.24xlarge", "instance_count": 2}
    assert Estimator(**arguments, distribution=SMDDP()).config.distributed.kind == "smddp"
    from sagemaker.train.distributed import MPI, SMP, Torchrun

    assert (
        Estimator(**arguments, distribution=Torchrun(process_count_per_node=4)).config.distributed.processes_per_host
        == 4
    )
    parallel = Estimator(**arguments, distribution=Torchrun(smp=SMP(tensor_parallel_degree=8))).config.distributed
    assert (parallel.kind, dict(parallel.parameters)) == ("smp", {"tensor_parallel_degree": 8})
    mpi = Estimator(**arguments, distribution=MPI(mpi_additional_options=["-x", "A=1"])).config.distributed
    assert (mpi.kind, mpi.mpi_options) == ("mpi", "-x A=1")


@pytest.mark.parametrize(
    ("code", "message", "wanted"),
    [
        ("ExpiredTokenException", "The security token included in the request is expired", "expired. HINT"),
        ("AccessDeniedException", "not authorized to perform: sagemaker:CreateTrainingJob", "is not allowed: .*HINT"),
        ("ResourceLimitExceeded", "The account-level service limit is 0 Instances", "quota"),
        (
            "UnrecognizedClientException",
            "The security token included in the request is invalid.",
            "rejects these credentials",
        ),
    ],
)
def test_a_refusal_of_aws_is_one_sentence(code, message, wanted, aws, sdk):
    aws.errors["CreateTrainingJob"] = (400, code, message)
    try:
        with pytest.raises(LaunchError, match=wanted):
            Estimator(**SMALL).fit(wait=False)
    finally:
        aws.errors.clear()


def test_a_role_that_sagemaker_may_not_take_is_refused_by_the_sdk(aws, sdk):
    allowed = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    aws.client("iam").create_role(RoleName="other", AssumeRolePolicyDocument=trust)
    begin = len(aws.calls)
    with pytest.raises(LaunchError, match="The SageMaker SDK rejects the job: .*other.*HINT"):
        Estimator(**{**SMALL, "role": "arn:aws:iam::123456789012:role/other"}).fit(wait=False)
    assert not uploads(aws, begin)


def test_credentials_that_are_missing_are_one_sentence(aws, sdk, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    begin = len(aws.calls)
    with pytest.raises(LaunchError, match="no AWS credentials .*--dry-run"):
        Estimator(**SMALL).fit(wait=False)
    assert not uploads(aws, begin)


def test_a_quota_that_is_too_small_is_said_before_the_upload(aws, sdk):
    name = "ml.m5.xlarge for training job usage"
    aws.quotas = [{"QuotaName": name, "Value": 1.0, "QuotaCode": "L-1", "ServiceCode": "sagemaker"}]
    begin = len(aws.calls)
    try:
        with pytest.raises(LaunchError, match=f"quota for {name} is 1, the job needs 2. HINT"):
            Estimator(**SMALL, instance_count=2).fit(wait=False)
        assert not uploads(aws, begin)
        Estimator(**SMALL, instance_count=1).fit(wait=False)
    finally:
        aws.quotas = []


def test_a_failed_job_says_why_and_a_stopped_one_ends(aws, sdk, capsys):
    aws.run_job = lambda request: ("Failed", "ValueError: no such column")
    try:
        with pytest.raises(LaunchError, match="failed: ValueError: no such column. HINT: `lightning-sagemaker logs"):
            Estimator(**SMALL).fit(poll=0.1)

        def wait_for_stop(request):
            name = request["TrainingJobName"]
            aws.log(name, "algo-1-1700000000", ["starting", "step=10 epoch=0 loss=5.5", "step=20 epoch=0 loss=4.5"])
            deadline = time.monotonic() + 20
            while name not in aws.stopped and time.monotonic() < deadline:
                time.sleep(0.02)
            return "Completed", ""

        aws.run_job = wait_for_stop
        estimator = Estimator(**SMALL)
        estimator.fit(wait=False)
        other = Estimator.attach(estimator.job_name)
        assert other.config.instance_type == "ml.m5.xlarge"
        threading.Timer(0.5, other.stop).start()  # when it has been seen to train
        status = estimator.wait(poll=0.1)
    finally:
        aws.run_job = None
    assert status.status == "Stopped"
    shown = capsys.readouterr().out
    assert "algo-1 | step=20 epoch=0 loss=4.5" in shown
    assert shown.index("Training") < shown.index("Stopped")
    names = [name for name, _, _ in TrainingJobs().list("albert-mlm")]
    assert estimator.job_name in names


def test_an_attached_job_has_the_values_and_the_distribution_that_were_sent(aws, sdk, tmp_path, caplog):
    (tmp_path / "train.py").touch()
    values = {"trainer.max_epochs": 3, "prompt": "it's", "version": "1.10", "layers": [1, 2], "plain": "a"}
    same = {"instance_count": 2, "distribution": {"torch_distributed": {"enabled": True}}, "recovery": "in_job"}
    own = {**SMALL, "recipe": None, "entry_point": str(tmp_path / "train.py"), "hyperparameters": values}
    estimator = Estimator(**own, **same)
    estimator.fit(wait=False)
    assert estimator._current_job_name == estimator.job_name
    with pytest.raises(LaunchError, match="no training_image: it is no ModelTrainer, which SDK 3"):
        estimator.training_image()  # SDK 3's tuner reads it
    other = Estimator.attach(estimator.job_name)
    assert (other.config.hyperparameters, other.hyperparameters()) == (values, estimator.hyperparameters())
    assert other.config.distributed == estimator.config.distributed
    channels = {one["ChannelName"]: one["DataSource"] for one in aws.requests[estimator.job_name]["InputDataConfig"]}
    bucket, key = split_uri(channels["sm_drivers"]["S3DataSource"]["S3Uri"])
    aws.client("s3").delete_object(Bucket=bucket, Key=f"{key}/distributed.json")
    assert Estimator.attach(estimator.job_name).config.hyperparameters["plain"] == "a"  # no reason not to attach
    assert "encoded hyperparameters cannot be read" in caplog.text


def test_an_artefact_is_handed_to_an_endpoint(aws, sdk):
    estimator = Estimator(**SMALL)
    estimator.fit(wait=False)
    image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-inference:2.6.0"
    name = estimator.deploy(1, "ml.m5.xlarge", image_uri=image)
    client = aws.client("sagemaker")
    model = client.describe_model(ModelName=name)["PrimaryContainer"]
    assert (model["Image"], model["ModelDataUrl"]) == (image, estimator.model_data)
    assert client.describe_endpoint(EndpointName=name)["EndpointConfigName"] == name
    variant = client.describe_endpoint_config(EndpointConfigName=name)["ProductionVariants"][0]
    assert (variant["InstanceType"], variant["InitialInstanceCount"]) == ("ml.m5.xlarge", 1)


def test_on_a_terminal_a_line_is_redrawn(aws, sdk):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def train(request):
        aws.log(request["TrainingJobName"], "algo-1-1700000000", ["step=40 epoch=0 loss=2.5 samples_per_second=90"])
        time.sleep(1.0)
        return "Completed", ""

    aws.run_job = train
    try:
        estimator = Estimator(**SMALL)
        estimator.fit(wait=False)
        output = Terminal()
        estimator.jobs.follow(estimator.job_name, output, poll=0.1, per_hour=3600.0)
    finally:
        aws.run_job = None
    shown = output.getvalue()
    assert "Training · 0 min · step 40 · loss 2.5 · samples_per_second 90 · about $" in shown
    assert shown.count("\r\x1b[K") >= 2
    assert shown.endswith("lightning-sagemaker: Completed\n") or "Completed" in shown.splitlines()[-1]


def test_a_job_that_is_not_there(aws, sdk):
    with pytest.raises(LaunchError, match="'nobody' failed: .*not found"):
        Estimator.attach("nobody")


@pytest.mark.parametrize("python", ["this", "older"])
def test_an_archive_that_leads_out_of_its_folder_is_refused(python, aws, sdk, tmp_path, monkeypatch):
    if python == "older":  # such as 3.11.2: archives are unpacked without a filter
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    estimator = Estimator(**SMALL)
    estimator.fit(wait=False)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo("../../evil.txt")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    bucket, _, key = estimator.model_data.removeprefix("s3://").partition("/")
    aws.client("s3").put_object(Bucket=bucket, Key=key, Body=buffer.getvalue())
    with pytest.raises(LaunchError, match="cannot be unpacked"):
        estimator.jobs.download(estimator.job_name, tmp_path / "a" / "b")
    assert not list(tmp_path.rglob("evil.txt"))


def test_the_constraints_leave_room_for_the_sdk():
    """So that all extras can be installed together with ``-c constraints.txt``; the SDK says itself what it takes."""
    pins = [
        Requirement(line.partition("#")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line[0] != "#"
    ]
    wanted = [
        Requirement(text)
        for one in importlib.metadata.distributions(path=[str(CONTAINERS / "sdk")])
        for text in one.requires or ()
    ]
    assert len(wanted) > 20
    for pin in pins:
        (version,) = (one.version for one in pin.specifier)
        against = [
            str(one) for one in wanted if one.name == pin.name and one.marker is None and version not in one.specifier
        ]
        assert not against, pin
