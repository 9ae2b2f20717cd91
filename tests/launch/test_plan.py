# SPDX-License-Identifier: Apache-2.0
"""What is decided, said and refused before anything leaves this machine."""

import base64
import contextlib
import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import botocore.session
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sagemaker import cli
from lightning_sagemaker.launch import Estimator, FileSystemInput, HuggingFace, JobConfig, LaunchError
from lightning_sagemaker.launch.planning.images import SMDDP_VERSIONS, find_image
from lightning_sagemaker.launch.planning.instances import INSTANCES, find_instance, instance_table_date
from lightning_sagemaker.launch.planning.plan import announced_strategy, make_plan
from lightning_sagemaker.launch.planning.pricing import estimate, load_prices, refresh_prices
from lightning_sagemaker.launch.planning.report import describe
from lightning_sagemaker.launch.source.wheel import make_wheel
from lightning_sagemaker.launch.spec.distribution import DistributionRequest, parse_distribution
from lightning_sagemaker.launch.spec.inputs import TrainingInput, parse_inputs
from lightning_sagemaker.metric_lines import format_line, metric_definitions, names_of
from lightning_sagemaker.simulator.containers.toolkit import framework_parameters
from tests.conftest import ROOT, run_bounded
from tests.launch.conftest import has_sdk
from tests.launch.seeds import ROLE, WAYS

P4D = {
    "recipe": "albert-mlm",
    "role": ROLE,
    "instance_type": "ml.p4d.24xlarge",
    "instance_count": 2,
    "region": "us-east-1",
}
SMDDP = {"smdistributed": {"dataparallel": {"enabled": True}}}
SMDDP_TORCHRUN = {**SMDDP, "torch_distributed": {"enabled": True}}


def partitions(count):
    parameters = {"partitions": count, "microbatches": 4, "ddp": True}
    return {"smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}, "mpi": {"enabled": True}}


BAD = [
    ({"distribution": SMDDP, "instance_type": "ml.g5.48xlarge"}, "SMDDP does not run on ml.g5.48xlarge"),
    ({"distribution": SMDDP, "instance_type": "ml.p3.16xlarge"}, "SMDDP 2.6.0 would take no collective: The guide of"),
    (
        {
            "distribution": SMDDP,
            "instance_type": "ml.p3dn.24xlarge",
            "environment": {"SMDATAPARALLEL_OPTIMIZE_SDP": "true"},
        },
        "SMDDP 2.6.0 would take no collective: SMDDP's AllGather is for P4 alone",
    ),
    (
        {"distribution": "ddp", "pytorch_version": "2.5.1", "environment": {"SMDDP_AG_SORT_BUFFER_SIZE_BYTES": "1"}},
        "SMDDP_AG_SORT_BUFFER_SIZE_BYTES='1' is set, and SMDDP takes multiples of 8192 bytes",
    ),
    (
        {"distribution": SMDDP, "environment": {"SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES": "16MB"}},
        "SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES='16MB' is set, and SMDDP takes multiples of 8192 bytes",
    ),
    ({"distribution": SMDDP, "pytorch_version": "2.8"}, "image of PyTorch 2.8.0 has no SMDDP"),
    ({"distribution": partitions(3)}, r"3.*\(2 x ml.p4d.24xlarge: 16 processes\)"),
    ({"distribution": {"smdistribute": {}}}, "did you mean 'smdistributed'"),
    (
        {"distribution": {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}}}},
        "neither mpi",
    ),
    (
        {
            "distribution": {
                **partitions(2),
                "smdistributed": {**SMDDP["smdistributed"], **partitions(2)["smdistributed"]},
            }
        },
        "one",
    ),
    ({"distribution": {"mpi": {"enabled": True, "processes_per_host": 9}}}, "9 processes per host"),
    ({"distribution": {**SMDDP, "mpi": {"enabled": True}}}, "dataparallel and mpi"),
    (
        {"distribution": {"mpi": {"enabled": True}, "torch_distributed": {"enabled": True}}},
        "enables mpi and torch_distributed",
    ),
    ({"distribution": "smdp"}, "did you mean 'smddp'"),
    ({"use_spot_instances": True, "max_run": 7200, "max_wait": 3600}, "max_wait=3600 is less than max_run=7200"),
    ({"max_wait": 3600}, "for a job on demand"),
    ({"max_run": 29 * 86400}, "max_run"),
    ({"use_spot_instances": True, "keep_alive_period": 60}, "Warm pools"),
    ({"role": None}, "role is not set"),
    ({"role": "no role"}, "give the name, or the ARN"),
    ({"recipe": "albert-mln"}, "did you mean 'albert-mlm'"),
    ({"recipe": None}, "Neither recipe nor entry_point"),
    ({"recipe": None, "entry_point": "../outside.py", "source_dir": "."}, "outside source_dir"),
    ({"recipe": None, "entry_point": "none.py", "source_dir": "."}, "is not in"),
    ({"recipe": None, "entry_point": "a.py", "source_dir": "nowhere"}, "is no folder"),
    ({"hyperparameters": {"layers": {1, 2}}}, "'layers' is set"),
    ({"hyperparameters": {"text": "x" * 2501}}, "2501 characters"),
    ({"hyperparameters": {f"h{i}": i for i in range(101)}}, "101 hyperparameters"),
    ({"region": "eu-nowhere-9"}, "no image of pytorch-training .* in region 'eu-nowhere-9'"),
    ({"region": "Frankfurt"}, "in region 'Frankfurt'"),
    ({"transformers_version": "4.56", "instance_type": "ml.m5.xlarge"}, "need a GPU"),
    ({"pytorch_version": "9.9"}, "pytorch_version='9.9' has no image"),
    ({"py_version": "py27"}, "py_version='py27'"),
    ({"instance_type": "local_gpu"}, "containers on this machine are not run.*--rehearse"),
    ({"distribution": {"mpi": {"enabled": "yes"}}}, "where a section belongs"),
    ({"instance_type": "p4d.24xlarge"}, "did you mean 'ml.p4d.24xlarge'"),
    ({"instance_type": "ml.p4d.24xlarg"}, "did you mean 'ml.p4d.24xlarge'"),
    ({"instance_type": "ml.g9.xlarge"}, r"no training instance of SageMaker \(20.*did you mean"),
    ({"instance_type": "ml.trn1.32xlarge"}, "16 Trainium, for which torch needs AWS's Neuron SDK"),
    ({"instance_count": 0}, "instance_count=0"),
    ({"volume_size": 0}, "volume_size=0"),
    ({"output_path": "bucket/prefix"}, "write s3://"),
    ({"checkpoint_s3_uri": "/opt/ml/checkpoints"}, "write s3://"),
    ({"checkpoint_local_path": "checkpoints"}, "absolute"),
    ({"subnets": ["subnet-1"]}, "go together"),
    ({"inputs": {"train": FileSystemInput("fs-01234567", "FSxLustre", "/x")}}, "inside a VPC"),
    ({"inputs": {"train": FileSystemInput("fs-01234567", "NFS", "/x")}}, "FSxLustre or EFS"),
    ({"inputs": {"train": "data/none"}}, "not on this machine"),
    ({"inputs": {"my data": "s3://bucket/x"}}, "letters, digits, dots, dashes"),
    ({"inputs": {"train": TrainingInput("s3://b-1/x", instance_groups=["gpu"])}}, "the instance group 'gpu'"),
    ({"inputs": {"train": {"s3_data": "s3://b-1/x", "record_wrapping": "Zip"}}}, "record_wrapping='Zip'"),
    ({"input_mode": "Stream"}, "input_mode='Stream'"),
    ({"code_location": "bucket"}, "write s3://"),
    ({"rules": [1]}, r"rules has 1.*Rule and ProfilerRule"),
    ({"rules": 1}, r"rules has 1.*Rule and ProfilerRule"),
    ({"debugger_hook_config": {"CollectionConfigurations": 5}}, "CollectionConfigurations=5. HINT: it is a list"),
    ({"debugger_hook_config": "on"}, "debugger_hook_config='on' was set.*the API's dictionary"),
    ({"profiler_config": 1}, "profiler_config=1 was set.*the API's dictionary"),
    ({"disable_profiler": True, "profiler_config": {"DisableProfiler": False}}, "disable_profiler was set beside"),
    (
        {
            "debugger_rules": [{"RuleConfigurationName": "a", "RuleEvaluatorImage": "DEFAULT_RULE_EVALUATOR_IMAGE"}],
            "region": "il-central-1",
        },
        "no image of sagemaker-debugger-rules in region 'il-central-1'",
    ),
    ({"container_entry_point": ["sh"]}, "first process is this package's"),
    ({"tensorboard_output_config": "s3://bucket/x"}, "tensorboard_output_config='s3://bucket/x'"),
    ({"inputs": {"code": "s3://bucket/x"}}, "the SDK itself adds"),
    ({"inputs": {"train": {"s3_data": "s3://bucket/x", "mode": "FastFile"}}}, "has the key 'mode'"),
    ({"inputs": {"train": {"s3_data": "s3://bucket/x", "input_mode": "Stream"}}}, "File, FastFile, Pipe"),
    ({"environment": {"2X": "y"}}, "environment has '2X'"),
    ({"metric_definitions": [{"Name": "loss", "Regex": "loss=(["}]}, "metric_definitions has"),
    ({"metric_definitions": [{"Name": f"m{i}", "Regex": "(x)"} for i in range(41)]}, "41 metric_definitions"),
    ({"enable_network_isolation": True, "image_uri": "own/image:1"}, "which Python image_uri has.*set py_version"),
    ({"dependencies": ["nowhere"]}, "dependencies has"),
    ({"instance_typ": "ml.p4d.24xlarge"}, "did you mean 'instance_type'"),
    ({"git_config": {"branch": "main"}, "recipe": None, "entry_point": "a.py"}, "git_config"),
]


@pytest.mark.parametrize(("change", "wanted"), BAD, ids=[wanted[:30] for _, wanted in BAD])
def test_bad_input_is_one_sentence_and_nothing_is_sent(change, wanted, aws):
    begin = len(aws.calls)
    with pytest.raises(LaunchError, match=wanted) as error:
        Estimator(**{**P4D, **change}).fit(wait=False)
    assert str(error.value).count("HINT: ") == 1
    assert "\n" not in str(error.value)
    assert len(aws.calls) == begin


def test_a_bundle_over_the_limit_and_requirements_with_torch(tmp_path, monkeypatch):
    from lightning_sagemaker.launch.source import bundle

    (tmp_path / "train.py").write_text("print()\n")
    estimator = Estimator(entry_point="train.py", source_dir=str(tmp_path), role=ROLE, region="us-east-1")
    (tmp_path / "requirements.txt").write_text("pandas\ntorch>=2 # new\n")
    with pytest.raises(LaunchError, match="lists 'torch>=2 # new', which would replace the image's own"):
        estimator.plan()
    (tmp_path / "requirements.txt").write_text("pandas\n--requirement=more/own.txt # ours\n")
    with pytest.raises(LaunchError, match=r"own.txt # ours', which is not among the files"):
        estimator.plan()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "own.txt").write_text("-r ../requirements.txt\ntorch\n")
    with pytest.raises(LaunchError, match=r"more/own.txt lists 'torch', which would replace the image's own"):
        estimator.plan()
    (tmp_path / "more" / "own.txt").write_text("scipy\n")
    (tmp_path / "pins.txt").write_text("torch==2.5.1\n")
    (tmp_path / "requirements.txt").write_text("torchmetrics\n-c pins.txt\n-r more/own.txt\n")
    assert "torchmetrics" in unpacked(estimator.plan().bundle)["requirements.txt"].decode()
    monkeypatch.setattr(bundle, "MAX_BYTES", 1000)
    (tmp_path / "vectors.bin").write_bytes(b"x" * 2000)
    with pytest.raises(LaunchError, match=r"largest file is vectors.bin. HINT: pass data as an input channel"):
        estimator.plan()


def unpacked(bundle):
    with tarfile.open(fileobj=io.BytesIO(bundle.content)) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}


def test_the_bundle_is_the_same_for_the_same_files_and_leaves_out_what_is_none(tmp_path):
    for copy in ("one", "two"):
        folder = tmp_path / copy
        (folder / "package").mkdir(parents=True)
        (folder / "train.py").write_text("print()\n")
        (folder / "package" / "model.py").write_text("x = 1\n")
        for name in (".env", "id_rsa", "key.pem", "last.ckpt", "data.parquet", "credentials.json"):
            (folder / name).write_text("secret")
        for name in (".git", "__pycache__", ".venv", "runs", ".aws"):
            (folder / name).mkdir()
            (folder / name / "file").write_text("x")
        (folder / "way-out").symlink_to("/etc/passwd")
        time.sleep(0.01)
    made = [
        Estimator(entry_point="train.py", source_dir=str(tmp_path / copy), region="us-east-1").plan().bundle
        for copy in ("one", "two")
    ]
    assert made[0].digest == made[1].digest == hashlib.sha256(made[0].content).hexdigest()
    (wheel,) = [name for name in made[0].files if name.endswith(".whl")]
    assert set(made[0].files) == {"train.py", "package/model.py", "requirements.txt", wheel}
    assert {".env", "id_rsa", ".git", "way-out", "last.ckpt"} <= set(made[0].left_out)
    assert unpacked(made[0])["requirements.txt"].decode() == f"./{wheel}\n"


def test_without_a_folder_the_script_is_sent_alone(tmp_path, monkeypatch):
    """As in SDK 2: it may stand beside whatever else is in one's home."""
    for name in ("train.py", "diary.txt", "requirements.txt"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    for entry in ("train.py", str(tmp_path / "train.py")):
        bundle = Estimator(entry_point=entry, region="us-east-1", include_plugin=False).plan().bundle
        assert bundle.files == ("train.py",)


def test_a_profile_that_is_not_there_is_one_sentence(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(LaunchError, match=r"Reading AWS's configuration.*nobody.*HINT"):
        Estimator(recipe="albert-mlm").plan()


def test_source_from_git(tmp_path):
    repository = tmp_path / "repository"
    (repository / "examples").mkdir(parents=True)
    (repository / "examples" / "run_qa.py").write_text("print('v1')\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"], ["branch", "v4.6.1"]):
        subprocess.run([*git, *command], check=True)
    (repository / "examples" / "run_qa.py").write_text("print('v2')\n")
    subprocess.run([*git, "commit", "-qam", "two"], check=True)
    config = {"repo": f"file://{repository}", "branch": "v4.6.1"}
    estimator = Estimator(entry_point="run_qa.py", source_dir="./examples", git_config=config, region="us-east-1")
    assert unpacked(estimator.plan().bundle)["run_qa.py"] == b"print('v1')\n"
    with pytest.raises(LaunchError, match="cannot be cloned"):
        Estimator(entry_point="a.py", git_config={**config, "branch": "none"}, region="us-east-1").plan()


@pytest.mark.parametrize(("options", "extras"), [({}, "recipes"), ({"model.lora.rank": 8}, "recipes,lora")])
def test_a_recipe_asks_for_what_its_options_need(monkeypatch, options, extras):
    from lightning_sagemaker.launch.source import bundle

    monkeypatch.setattr(bundle, "make_wheel", lambda: ("own.whl", b""))
    made = bundle.make_bundle(JobConfig(recipe="bert-qa", hyperparameters=options), include_plugin=True)
    assert unpacked(made)["requirements.txt"].decode().startswith(f"./own.whl[{extras}]\n")


def test_the_wheel_holds_what_it_says():
    name, content = make_wheel()
    assert make_wheel() == (name, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        record = {row[0]: row for row in csv.reader(io.StringIO(archive.read(record_of(archive)).decode())) if row}
        assert set(record) == set(archive.namelist())
        for path in archive.namelist():
            if not path.endswith("RECORD"):
                digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(path)).digest()).rstrip(b"=").decode()
                assert record[path][1] == f"sha256={digest}"
        names = archive.namelist()
    for wanted in ("launch/planning/data/images.json", "launch/templates/role.yaml", "container/lightning_driver.py"):
        assert f"lightning_sagemaker/{wanted}" in names
    assert "lightning_sagemaker/recipes/albert_mlm/tiny.yaml" in names
    assert not [path for path in names if "__pycache__" in path or path.startswith("tests")]


def record_of(archive):
    return next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))


@pytest.mark.parametrize(
    ("given", "kind", "flags"),
    [
        (None, "none", {}),
        (SMDDP, "smddp", {"sagemaker_distributed_dataparallel_enabled": True}),
        ({"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": "-x A"}}}, "smddp", {}),
        ({"smdistributed": {"dataparallel": {"enabled": False}}}, "none", {}),
        ({"pytorchddp": {"enabled": True}}, "ddp", {"sagemaker_pytorch_ddp_enabled": True}),
        ({"torch_distributed": {"enabled": True}}, "torch_distributed", {"sagemaker_torch_distributed_enabled": True}),
        ({"mpi": {"enabled": True, "processes_per_host": 4}}, "mpi", {"sagemaker_mpi_num_of_processes_per_host": 4}),
        (partitions(2), "smp", {"sagemaker_mpi_enabled": True, "sagemaker_distributed_dataparallel_enabled": False}),
        (WAYS["smp"]["distribution"], "smp", {"sagemaker_torch_distributed_enabled": True}),
    ],
)
def test_the_estimators_dictionaries(given, kind, flags):
    request = parse_distribution(given)
    assert request.kind == kind
    assert flags.items() <= request.flags.items()
    json.dumps(request.to_json())


@pytest.mark.parametrize("kind", ["smddp", "ddp", "torch_distributed", "mpi"])
def test_the_flags_are_those_of_the_simulated_containers(kind):
    """Which are held to AWS's own toolkit elsewhere."""
    from lightning_sagemaker.simulator.contract import Cluster

    cluster = Cluster(
        job_name="x", hosts=("algo-1",), processes_per_host=1, distribution=kind, contract="toolkit", instance_type="t",
        network_interface="lo", main_address="a", main_port=1, entry_point="", arguments=(), code=Path(), hyperparameters={},
        channels=(), gpus_per_host=0, region="r",
    )  # fmt: skip
    theirs = framework_parameters(cluster)
    for name in ("sagemaker_instance_type", "sagemaker_mpi_num_of_processes_per_host"):
        theirs.pop(name, None)
    assert DistributionRequest(kind, uses_torchrun=kind != "mpi").flags == theirs


def read_or_refused(read, value):
    """Any error but our own, with its hint, is a failure."""
    with contextlib.suppress(Refused):
        try:
            read(value)
        except LaunchError as error:
            raise (Refused if "HINT: " in str(error) else AssertionError)(str(error)) from error


class Refused(Exception):
    pass


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=12),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["smdistributed", "dataparallel", "modelparallel", "mpi", "enabled", "parameters", "x"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=300, deadline=None)
def test_any_distribution_and_any_inputs_are_read_or_refused(value):
    read_or_refused(parse_distribution, value)
    read_or_refused(parse_inputs, value)


@given(
    st.dictionaries(st.sampled_from([*JobConfig.__dataclass_fields__, "other"]), st.none() | st.integers() | st.text())
)
@settings(max_examples=200, deadline=None)
def test_any_job_file_is_read_or_refused(values):
    read_or_refused(JobConfig.from_mapping, values)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes_as_a_job_file(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("job") / "job.yaml"
    path.write_bytes(content)
    read_or_refused(JobConfig.from_yaml, path)


def test_a_job_as_yaml_comes_back(tmp_path):
    config = JobConfig.from_mapping(
        {
            **P4D,
            "distribution": partitions(2),
            "tags": [{"Key": "a", "Value": "b"}],
            "inputs": {"train": "s3://bucket/x"},
        }
    )
    path = tmp_path / "job.yaml"
    path.write_text(config.to_yaml())
    assert JobConfig.from_yaml(path) == config
    config = config.changed(inputs={"train": TrainingInput("s3://bucket/x", input_mode="FastFile")})
    path.write_text(config.to_yaml())
    assert JobConfig.from_yaml(path).channels == config.channels


def test_images_are_those_of_the_sdk():
    assert has_sdk()
    from sagemaker.core import image_uris

    for kind, has_gpu in (("ml.p4d.24xlarge", True), ("ml.m5.xlarge", False)):
        for version in ("2.5.1", "2.6.0", "2.8.0", "2.10.0"):
            for region in ("us-east-1", "eu-west-1", "cn-north-1", "us-gov-west-1"):
                ours = find_image(region, kind, version)
                python = f"py{ours.python[0]}{ours.python[1]}"
                theirs = image_uris.retrieve(
                    framework="pytorch", region=region, version=version, py_version=python, instance_type=kind,
                    image_scope="training",
                )  # fmt: skip
                assert ours.uri == theirs
        if has_gpu:
            for transformers, pytorch in (
                ("4.56.2", "2.8.0"),
                ("4.49.0", "2.5.1"),
                ("5.3.0", "2.9.0"),
                ("4.6.1", "1.7.1"),
            ):
                ours = find_image("us-west-2", kind, pytorch, transformers)
                theirs = image_uris.retrieve(
                    framework="huggingface", region="us-west-2", version=transformers, instance_type=kind,
                    base_framework_version=f"pytorch{pytorch}", image_scope="training",
                    py_version="py" + "".join(map(str, ours.python)),
                )  # fmt: skip
                assert ours.uri == theirs


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
    ("change", "words"),
    [
        ({"distribution": SMDDP}, "2.6.0: AllReduce by smddp, AllGather by nccl. SMDDP started by mpirun"),
        (
            {"distribution": "torch_distributed", "pytorch_version": "2.5.1"},
            "2.6.0: AllReduce by nccl, AllGather by smddp. SMDDP started by torchrun",
        ),
        (
            {"distribution": "ddp", "pytorch_version": "2.5.1", "environment": {"SMDATAPARALLEL_OPTIMIZE_SDP": "true"}},
            "2.6.0: AllReduce by nccl, AllGather by smddp. SMDDP started by mpirun with SMDATAPARALLEL_OPTIMIZE_SDP=true",
        ),
        ({"distribution": SMDDP, "pytorch_version": "2.0.1"}, "SMDDP 2.0.2 leaks CPU memory in AllReduce"),
        ({"distribution": "torch_distributed"}, None),  # the default image has no SMDDP
    ],
)
def test_the_plan_says_what_smddp_takes(change, words):
    rows = dict(describe(make_plan(JobConfig.from_mapping({**P4D, **change}))))
    assert ("smddp" in rows) is (words is not None)
    assert words is None or words in rows["smddp"]


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


def test_the_plan_says_the_global_batch_and_the_price():
    rows = dict(describe(make_plan(JobConfig.from_mapping({**P4D, "distribution": SMDDP, "max_run": 3600}))))
    assert rows["cost"].startswith("$50.50 an hour; at most $50.50 (1 h); prices of us-east-1, 2026-")
    assert rows["global batch"] == "256 (global_batch_size)"
    values = {"per_device_train_batch_size": 4}
    rows = dict(describe(make_plan(JobConfig.from_mapping({**P4D, "hyperparameters": values, "distribution": "ddp"}))))
    assert rows["global batch"].startswith("64: 4 (per_device_train_batch_size) x 16 processes")
    parallel = {**P4D, "hyperparameters": values, "distribution": partitions(2)}
    assert dict(describe(make_plan(JobConfig.from_mapping(parallel))))["global batch"].startswith("32: 4 ")
    spot = dict(describe(make_plan(JobConfig.from_mapping({**P4D, "use_spot_instances": True, "max_run": 3600}))))
    assert spot["cost"].startswith("$20.20 an hour")
    assert spot["spot"] == "yes, waiting at most 2 h in all"


def test_prices_are_refreshed_from_the_price_list(tmp_path, monkeypatch):
    """The price list has no server here: its pages are as AWS documents them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    class Pricing:
        def get_paginator(self, name):
            assert name == "get_products"
            return self

        def paginate(self, ServiceCode, Filters):
            assert ServiceCode == "AmazonSageMaker"
            assert {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "eu-west-1"} in Filters
            dimension = {"x": {"pricePerUnit": {"USD": "31.5"}}}
            product = {
                "product": {"attributes": {"instanceName": "ml.p4d.24xlarge", "component": "Training"}},
                "terms": {"OnDemand": {"y": {"priceDimensions": dimension}}},
            }
            return [{"PriceList": [json.dumps(product)]}, {"PriceList": []}]

    refresh_prices("eu-west-1", Pricing())
    prices = load_prices("eu-west-1")
    assert prices.usd_per_hour == {"ml.p4d.24xlarge": 31.5}
    assert estimate(prices, {"ml.p4d.24xlarge": 2}, 3600, "eu-west-1", spot=False).at_most == 63.0
    assert estimate(prices, {"ml.p5.48xlarge": 2, "ml.p4d.24xlarge": 2}, 3600, "eu-west-1", spot=False) is None
    assert load_prices("us-east-1").usd_per_hour["ml.g5.xlarge"] == 1.408
    (tmp_path / "lightning-sagemaker" / "prices-eu-west-1.json").write_text("{")
    assert load_prices("eu-west-1").region == "us-east-1"


def test_tables_agree():
    assert set(load_prices("us-east-1").usd_per_hour) <= set(INSTANCES)
    for version in SMDDP_VERSIONS:
        assert find_image("us-east-1", "ml.p4d.24xlarge", version).smddp


def test_every_instance_of_the_service_is_known():
    """The names are botocore's; the facts are EC2's. A newer botocore may know more than the table, none less."""
    session = botocore.session.get_session()
    names = set(session.get_service_model("sagemaker").shape_for("TrainingInstanceType").enum)
    if f"botocore {botocore.__version__};" in instance_table_date():
        assert set(INSTANCES) == names
    assert len(names & set(INSTANCES)) >= 220
    for name in INSTANCES:
        known = INSTANCES[name]
        assert known.cpus >= 2, name
        assert known.memory >= 4, name
        assert known.network > 0, name
        has_gpu = name.startswith(("ml.g", "ml.p"))
        assert has_gpu == bool(known.gpus and known.gpu_memory and not known.gpu.startswith("Trainium")), name
        if has_gpu or not known.gpus:
            uri = find_image("us-east-1", name).uri
            assert ("-gpu-" if has_gpu else "-cpu-") in uri, name
    assert (find_instance("ml.p4d.24xlarge").gpus, find_instance("ml.p4d.24xlarge").efa) == (8, True)
    assert find_instance("ml.c7i.2xlarge").cpus == 8


def test_the_fabric_is_announced():
    job = {**P4D, "instance_type": "ml.g6e.12xlarge", "distribution": "ddp"}
    assert announced_strategy(make_plan(JobConfig.from_mapping(job))).backend == "nccl"


def test_definitions_read_the_lines():
    values = {name: 1.5e-7 if name == "learning_rate" else 12.25 for name in names_of("bert-qa") if name != "epoch"}
    line = format_line({**values, "epoch": 3}, 40)
    for one in metric_definitions(names_of("bert-qa")):
        found = re.search(one["Regex"], line)
        assert float(found.group(1)) == (3 if one["Name"] == "epoch" else values[one["Name"]])


def test_the_old_names_are_taken(caplog):
    estimator = HuggingFace(
        entry_point="x.py", transformers_version="4.56", train_instance_type="ml.g5.xlarge", debugger_hook_config=False
    )
    assert estimator.config.instance_type == "ml.g5.xlarge"
    with pytest.raises(LaunchError, match="transformers_version"):
        HuggingFace(entry_point="x.py")
    with pytest.raises(LaunchError, match="trains with PyTorch"):
        HuggingFace(entry_point="x.py", transformers_version="4.6", tensorflow_version="2.4")


NOT_INSTALLED = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sagemaker", "boto3", "botocore"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from lightning_sagemaker.cli import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules and "lightning" not in sys.modules
sys.exit(code)
"""


def test_without_the_sdk_a_dry_run_works_and_a_launch_says_what_to_install():
    job = ["launch", "albert-mlm", "--instance-type", "ml.p4d.24xlarge", "--instance-count", "2"]
    run = [sys.executable, "-c", NOT_INSTALLED, *job, "--distribution", "smddp"]
    dry = subprocess.run([*run, "--dry-run"], capture_output=True, text=True, timeout=60)
    assert dry.returncode == 0, dry.stderr
    request = json.loads(dry.stdout)
    assert request["ResourceConfig"]["InstanceCount"] == 2
    assert "smddp (smddp)" in dry.stderr
    assert request["RoleArn"].startswith("MISSING: ")
    refused = subprocess.run([*run, "--role", ROLE, "--yes"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "lightning-sagemaker[launch]" in refused.stderr


SCRIPT = """
import json, os, sys
print("arguments", sys.argv[1:], "channel", os.listdir(os.environ["SM_CHANNEL_TRAIN"]), os.environ["SM_HP_TEXT"])
print("flags", json.loads(os.environ["SM_FRAMEWORK_PARAMS"]), os.getcwd() == os.environ["SM_SOURCE_DIR"])
sys.exit(int(sys.argv[sys.argv.index("--code") + 1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="drivers look for processes in /proc")
def test_a_rehearsal_needs_neither_role_nor_account_nor_sdk_and_ends_with_the_scripts_code(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "data").mkdir()
    for name in ("a.csv", ".env"):
        (tmp_path / "data" / name).write_text("1,2\n")
    run = [sys.executable, "-c", NOT_INSTALLED, "launch", "train.py", "--rehearse", "--channel", "train=data"]
    run += ["--text", "it's 1.10", "--instance-type", "ml.g5.xlarge", "--rehearse-root", "here"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {"HOME": str(tmp_path)}
    clean["PYTHONPATH"] = str(ROOT / "src")
    ends = {}
    for code, more in ((0, ["--dry-run"]), (3, [])):
        done = subprocess.run(
            [*run, "--code", str(code), *more], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=200
        )
        ends[code] = done
        assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    both = ends[0].stderr
    assert json.loads(ends[0].stdout)["HyperParameters"]["code"] == "0"
    assert "a stand-in for its start script is used" in both
    assert "arguments ['--code', '0', '--text', \"it's 1.10\"] channel ['a.csv'] it's 1.10" in both
    assert "flags {} True" in both
    assert "rehearsal        passed" in both
    assert "rehearsal        failed, exit code 3" in ends[3].stdout
    assert "not sent      inputs/train/.env (credentials)" in ends[3].stdout


@pytest.mark.alone
def test_help_is_instant_and_a_job_can_be_saved(tmp_path, capsys):
    seconds = []
    for _ in range(4):
        begin = time.monotonic()
        shown = run_bounded([sys.executable, "-m", "lightning_sagemaker.cli", "launch", "--help"]).stdout
        seconds.append(time.monotonic() - begin)
    assert "--dry-run" in shown
    assert min(seconds) < 0.5
    path = tmp_path / "job.yaml"
    command = ["launch", "bert-qa", "--instance-type", "ml.g5.12xlarge", "--set", "hyperparameters.max_steps=7"]
    assert (
        cli.main([*command, "--set", "environment.A=1", "--channel", "train=s3://bucket/x", "--save", str(path)]) == 0
    )
    config = JobConfig.from_yaml(path)
    assert (config.recipe, config.hyperparameters, config.environment) == ("bert-qa", {"max_steps": 7}, {"A": "1"})
    capsys.readouterr()
    assert cli.main(["launch", "--config", str(path), "--region", "us-east-1", "--dry-run", "--spot"]) == 0
    request = json.loads(capsys.readouterr().out)
    assert request["EnableManagedSpotTraining"]
    assert request["HyperParameters"] == {"max_steps": "7"}
    assert cli.main(["launch", "bert-qq", "--dry-run"]) == 2
    assert "did you mean 'bert-qa'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--epochs", "3"], {"epochs": 3}),
        (["--lr=1e-4", "--name", "bert", "--version", "1.10", "--fp16", "true"], {
            "lr": "1e-4", "name": "bert", "version": "1.10", "fp16": True,
        }),
        (["--shift", "-0.5", "-n", "8"], {"shift": -0.5, "n": 8}),
        (["--spot", "--epochs", "3", "--max-run", "60"], {"epochs": 3}),
        (["--", "--config", "small.yaml", "--spot", "1"], {"config": "small.yaml", "spot": 1}),
        (["--trainer.max_epochs", "3"], {"trainer.max_epochs": 3}),
    ],
)  # fmt: skip
def test_options_after_the_script_are_its_hyperparameters(given, wanted, tmp_path, monkeypatch, capsys):
    """The oracle is ``python train.py ...`` itself: the container starts the script with the same words."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    Path("train.py").write_text("")
    assert cli.main(["launch", "train.py", *given, "--save", "job.yaml"] if "--" not in given else [
        "launch", "train.py", "--save", "job.yaml", *given,
    ]) == 0  # fmt: skip
    config = JobConfig.from_yaml("job.yaml")
    assert config.hyperparameters == wanted
    assert config.use_spot_instances == ("--spot" in given and "--" not in given)
    assert all(type(config.hyperparameters[name]) is type(value) for name, value in wanted.items())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--instance-typ", "ml.g5.xlarge"], "did you mean '--instance-type'"),
        (["--fp16"], "'--fp16' has no value"),
        (["--fp16", "--epochs", "3"], "'--fp16' has no value"),
        (["positional"], "was given 'positional'"),
    ],
)
def test_options_that_cannot_be_the_scripts_are_refused(given, wanted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert cli.main(["launch", "train.py", *given, "--dry-run"]) == 2
    assert wanted in capsys.readouterr().err


def test_the_options_of_launch_are_known_to_what_reads_the_scripts():
    from lightning_sagemaker.launch.spec.script_arguments import _OWN

    shown = run_bounded([sys.executable, "-m", "lightning_sagemaker.cli", "launch", "--help"]).stdout
    assert set(re.findall(r"^ +--([a-z-]+)", shown, re.MULTILINE)) == set(_OWN)


def test_other_commands_take_no_unknown_option(capsys):
    with pytest.raises(SystemExit):
        cli.main(["ls", "--epochs", "3"])
    assert "unrecognized arguments: --epochs 3" in capsys.readouterr().err


def test_templates_and_the_image_helper(tmp_path, capsys):
    assert cli.main(["template"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["role", "fsx", "tensorboard", "dockerfile"]
    for name in names[:3]:
        assert cli.main(["template", name]) == 0
        path = tmp_path / f"{name}.yaml"
        path.write_text(capsys.readouterr().out)
        lint = run_bounded([Path(sys.executable).with_name("cfn-lint"), path])
        assert lint.returncode == 0, lint.stdout
    (tmp_path / "requirements.txt").write_text("pandas\n")
    command = [
        "image",
        str(tmp_path / "image"),
        "--requirements",
        str(tmp_path / "requirements.txt"),
        "--region",
        "us-east-1",
    ]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert (
        "--build-arg BASE_IMAGE=763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-gpu-py312" in shown
    )
    assert {path.name for path in (tmp_path / "image").iterdir()} == {"Dockerfile", "requirements.txt", make_wheel()[0]}
    (tmp_path / "requirements.txt").write_text("torch==2.0\n")
    assert cli.main(command) == 2
    (tmp_path / "requirements.txt").write_text("")
    (tmp_path / "image" / "Dockerfile").write_text("FROM mine\n")
    assert cli.main(command) == 2
    assert (tmp_path / "image" / "Dockerfile").read_text() == "FROM mine\n"
    capsys.readouterr()
    assert cli.main(["metrics", "bert-qa", "--json"]) == 0
    assert {"val_f1", "loss"} <= {one["Name"] for one in json.loads(capsys.readouterr().out)}


def test_secrets_in_hyperparameters_and_variables_are_said():
    """Not refused, as scripts ask for them so; but never without a word."""
    token = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH"
    given = {
        "hyperparameters": {"hf_token": token, "epochs": 3, "note": "a word"},
        "environment": {"WANDB_API_KEY": "0f1e2d3c4b5a69788796" * 2},
    }
    said = [text for word, text in describe(Estimator(**P4D, **given).plan()) if "looks like a secret" in text]
    assert [text.split(" looks")[0] for text in said] == ["the hyperparameter hf_token", "the variable WANDB_API_KEY"]
    assert token not in "".join(said)
    assert not [text for _, text in describe(Estimator(**P4D).plan()) if "looks like a secret" in text]
