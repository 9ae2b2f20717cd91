# SPDX-License-Identifier: Apache-2.0
"""Clusters whose hosts are of several types: how they are described, planned, sent, rehearsed and read in the container."""

import json
import os
import sys
from pathlib import Path

import pytest

from lightning_sagemaker import cli
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.launch import Estimator, InstanceGroup, JobConfig, LaunchError, TrainingInput
from lightning_sagemaker.launch.planning.plan import announced_job, price
from lightning_sagemaker.launch.planning.quotas import check_quota
from lightning_sagemaker.launch.planning.report import describe
from lightning_sagemaker.launch.request.create import create_request
from lightning_sagemaker.launch.spec.described import described_job
from tests.conftest import ROOT
from tests.launch.conftest import has_sdk
from tests.launch.seeds import ROLE

sys.path.insert(0, str(ROOT / "src" / "lightning_sagemaker" / "container"))
import lightning_groups  # in a container it lies in a folder of its own

has_sdk()  # from now on it can be imported

DATA, GPU = InstanceGroup("data", "ml.c5.18xlarge", 3), InstanceGroup("gpu", "ml.p4d.24xlarge", 2)
MPI = {"mpi": {"enabled": True, "processes_per_host": 8}, "instance_groups": ["gpu"]}
JOB = {"entry_point": "train.py", "role": ROLE, "region": "us-east-1", "instance_groups": [DATA, GPU]}


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('trains')\n")


def group(name="gpu", kind="ml.g5.xlarge", count=1):
    return InstanceGroup(name, kind, count)


BAD = [
    ({"instance_groups": []}, r"instance_groups=\[\] was set.*1 to 5"),
    ({"instance_groups": [group(str(index)) for index in range(6)]}, "1 to 5"),
    ({"instance_groups": ["gpu"]}, "instance_groups has 'gpu'"),
    ({"instance_groups": [group(count="2")]}, "a type and a number of hosts"),
    ({"instance_groups": [group(), group()]}, "Two instance groups are named 'gpu'"),
    ({"instance_groups": [{"instance_group_name": "gpu", "instance_typ": "x"}]}, "did you mean 'instance_type'"),
    ({"instance_groups": [group(kind="ml.g5.xlarg")]}, "did you mean 'ml.g5.xlarge'"),
    ({"instance_groups": [group(), group("data", "ml.c5.xlarg")]}, "did you mean 'ml.c5.xlarge'"),
    ({"instance_groups": [group(), group("data", count=0)]}, "instance_count=0"),
    ({"instance_type": "ml.g5.xlarge"}, "instance_type was set with instance_groups"),
    ({"instance_count": 2}, "instance_count was set with instance_groups"),
    ({"distribution": "smddp"}, "has 2 groups, but a distribution covers one"),
    ({"distribution": {**MPI, "instance_groups": ["gpus"]}}, "training group is 'gpus'.*did you mean 'gpu'"),
    ({"distribution": {**MPI, "instance_groups": [DATA, GPU]}}, "names the instance groups data, gpu.*use one"),
    ({"distribution": {"instance_groups": [GPU]}}, "but enables no launcher"),
    ({"distribution": MPI, "instance_group": "data"}, "names the instance group 'gpu', and instance_group 'data'"),
    (
        {"distribution": {"smdistributed": {"dataparallel": {"enabled": True}}, "instance_groups": ["data"]}},
        "SMDDP does not run on ml.c5",
    ),
    ({"instance_groups": None, "distribution": MPI}, "names the instance group 'gpu', but the hosts are in no groups"),
    ({"instance_groups": None, "other_groups": [{}]}, "other_groups was set without instance_group"),
    ({"inputs": {"train": TrainingInput("s3://bucket/x", instance_groups=["cpu"])}}, "instance group 'cpu', which the job"),
    ({"keep_alive_period_in_seconds": 60}, "Warm pools support one group"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "wanted"), BAD, ids=[wanted[:30] for _, wanted in BAD])
def test_what_cannot_be_is_one_sentence(change, wanted):
    with pytest.raises(LaunchError, match=wanted) as error:
        Estimator(**{**JOB, **change}).plan()
    assert str(error.value).count("HINT: ") == 1
    assert "\n" not in str(error.value)


def test_the_group_of_the_distribution_trains_and_all_are_paid_for():
    estimator = Estimator(
        **JOB, distribution=MPI, inputs={"train": TrainingInput("s3://bucket/x", instance_groups=["data"])}
    )
    plan = estimator.plan()
    job = announced_job(plan)
    assert (job.num_nodes, job.world_size, job.instance_type, job.instance_group) == (2, 16, GPU.instance_type, "gpu")
    words = dict(describe(plan))
    assert words["hosts"].startswith("2 x ml.p4d.24xlarge (instance group gpu): 8 A100")
    assert words["beside"] == (
        "3 x ml.c5.18xlarge (instance group data): no GPU; the program runs once on each, independently"
    )
    assert words["inputs"] == "train: s3://bucket/x (File, for data only)"
    assert "-gpu-" in words["image"]
    alone = [Estimator(**{**JOB, "instance_groups": [one]}).plan() for one in (GPU, DATA)]
    assert price(plan).per_hour == pytest.approx(sum(price(one).per_hour for one in alone))
    assert estimator.instance_groups == [GPU, DATA]


def test_without_a_distribution_the_first_group_with_gpus_says_which_image():
    assert Estimator(**JOB).config.instance_group == "gpu"
    assert Estimator(**{**JOB, "instance_groups": [DATA]}).config.instance_group == "data"
    assert Estimator(**JOB, instance_group="data", distribution="torch_distributed").config.instance_group == "data"


def test_a_file_and_the_command_line_describe_groups(capsys):
    Path("job.yaml").write_text(Estimator(**JOB, distribution=MPI).config.to_yaml())
    assert JobConfig.from_yaml("job.yaml") == Estimator(**JOB, distribution=MPI).config
    Path("groups.yaml").write_text(
        "entry_point: train.py\ninstance_groups:\n"
        "- {instance_group_name: a, instance_type: ml.c5.large, instance_count: 1}\n"
        "- {instance_group_name: b, instance_type: ml.g5.xlarge, instance_count: 2}\n"
    )
    assert [one.instance_group_name for one in JobConfig.from_yaml("groups.yaml").groups] == ["b", "a"]
    text = "instance_groups=[{InstanceGroupName: x, InstanceType: ml.g5.xlarge, InstanceCount: 4}]"
    assert cli.main(["launch", "--config", "groups.yaml", "--set", text, "--dry-run"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ResourceConfig"]["InstanceGroups"] == [
        {"InstanceGroupName": "x", "InstanceType": "ml.g5.xlarge", "InstanceCount": 4}
    ]


def test_a_job_that_exists_is_read_back():
    plan = Estimator(**JOB, distribution=MPI).plan()
    request = create_request(plan, "name-1", "bucket")
    assert described_job(request).groups == (GPU, DATA)
    of_sdk_2 = {
        **request,
        "ResourceConfig": {"InstanceGroups": request["ResourceConfig"]["InstanceGroups"], "VolumeSizeInGB": 30},
        "HyperParameters": {"sagemaker_distribution_instance_groups": '["data"]'},
    }
    assert described_job(of_sdk_2).groups == (DATA, GPU)


def test_each_type_has_its_quota(aws, sdk):
    name = "ml.c5.18xlarge for training job usage"
    aws.quotas = [{"QuotaName": name, "Value": 2.0, "QuotaCode": "L-1", "ServiceCode": "sagemaker"}]
    try:
        with pytest.raises(LaunchError, match=f"quota for {name} is 2, the job needs 3"):
            check_quota(sdk.make_boto_session("us-east-1"), Estimator(**JOB).config)
    finally:
        aws.quotas = []


def test_sdk_3_sends_the_same(aws, sdk):
    inputs = {"train": TrainingInput("s3://bucket/data/", instance_groups=["data"]), "all": "s3://bucket/all/"}
    estimator = Estimator(**JOB, distribution=MPI)
    plan = estimator.plan(inputs)
    estimator.fit(inputs, wait=False, plan=plan)
    sent = aws.requests[estimator.job_name]
    assert sent == create_request(plan, estimator.job_name, "sagemaker-us-east-1-123456789012")
    assert len(sent["ResourceConfig"]["InstanceGroups"]) == 2
    assert "InstanceType" not in sent["ResourceConfig"]
    groups = {
        one["ChannelName"]: one["DataSource"]["S3DataSource"].get("InstanceGroupNames")
        for one in sent["InputDataConfig"]
    }
    assert groups == {"train": ["data"], "all": None, "code": ["gpu", "data"], "sm_drivers": ["gpu", "data"]}


RECORDED = json.loads((ROOT / "tests" / "data" / "recorded_environments.json").read_text())
OF_GROUPS = (
    "SM_CURRENT_INSTANCE_GROUP", "SM_CURRENT_INSTANCE_GROUP_HOSTS", "SM_INSTANCE_GROUPS", "SM_INSTANCE_GROUPS_DICT",
    "SM_DISTRIBUTION_INSTANCE_GROUPS", "SM_IS_HETERO",
)  # fmt: skip


@pytest.mark.parametrize(
    ("run", "rank"),
    [
        ("hetero_mpi", "algo-1-x"),
        ("hetero_mpi", "algo-2-0"),
        ("none2", "algo-2-x"),
        ("td2u", "algo-1-2"),
        ("td2", "algo-1-0"),
    ],
)
def test_the_container_sets_what_the_training_toolkit_sets(run, rank, monkeypatch):
    """As in the recordings of AWS's own program."""
    environment = RECORDED[run]["shared"] | RECORDED[run]["ranks"][rank]["env"]
    flags = json.loads(environment["SM_FRAMEWORK_PARAMS"])
    config = {"flags": flags, "groups": flags.get("sagemaker_distribution_instance_groups")}
    for name in ("SM_RESOURCE_CONFIG", "SM_HOSTS"):
        monkeypatch.setenv(name, environment[name])
    assert lightning_groups.group_variables(config) == {name: environment[name] for name in OF_GROUPS}
    if "MASTER_ADDR" in environment:  # the first of those that train together
        assert lightning_groups.training_hosts(config)[0] == environment["MASTER_ADDR"]


SCRIPT = """
import json, os, pathlib
from lightning_sagemaker import SageMakerJob

job = SageMakerJob.from_environment()
about = {"rank": os.environ.get("RANK"), "world": os.environ.get("WORLD_SIZE"), "hosts": job.hosts, "nodes": job.num_nodes,
         "group": job.instance_group, "type": job.instance_type, "notes": job.notes,
         "data": sorted(os.listdir(os.environ["SM_CHANNEL_SHARE"])) if "SM_CHANNEL_SHARE" in os.environ else None,
         "params": json.loads(os.environ["SM_FRAMEWORK_PARAMS"]), "hetero": os.environ["SM_IS_HETERO"]}
pathlib.Path(job.model_dir, f"rank-{about['rank']}.json").write_text(json.dumps(about))
"""


@pytest.mark.parametrize("start", ["sdk", "stand-in"])
def test_a_rehearsal_trains_in_one_group_and_runs_the_program_once_elsewhere(start, tmp_path, monkeypatch):
    if start == "stand-in":
        monkeypatch.setitem(sys.modules, "lightning_sagemaker.launch.request.offline", None)
    from lightning_sagemaker.launch.rehearsal import rehearse

    Path("train.py").write_text(SCRIPT)
    Path("share").mkdir()
    for name in "abc":
        Path("share", name).touch()
    distribution = {"torch_distributed": {"enabled": True, "processes_per_host": 2}, "instance_groups": ["gpu"]}
    groups = [InstanceGroup("data", "ml.c5.18xlarge", 3), InstanceGroup("gpu", "ml.p4d.24xlarge", 4)]
    share = TrainingInput("s3://bucket/share/", "ShardedByS3Key", instance_groups=["data"])
    plan = Estimator(**{**JOB, "instance_groups": groups}, distribution=distribution).plan({"share": share})
    monkeypatch.setattr("lightning_sagemaker.launch.rehearsal._samples", lambda *_: {})
    monkeypatch.setattr("lightning_sagemaker.launch.rehearsal.fetch_from", _with_share)
    done = rehearse(plan, tmp_path / "root", hosts=2, output=(tmp_path / "shown").open("w"))
    assert done.result.returncode == 0, (tmp_path / "root" / "log").read_text()[-3000:]
    about = {
        str(path.relative_to(tmp_path / "root").parts[0]) + path.stem[4:]: json.loads(path.read_text())
        for path in (tmp_path / "root").glob("algo-*/model/rank-*.json")
    }
    trained = {name: one for name, one in about.items() if one["group"] == "gpu"}
    assert sorted(trained) == ["algo-1-0", "algo-1-1", "algo-2-2", "algo-2-3"]
    for one in trained.values():
        assert (one["world"], one["hosts"], one["nodes"]) == ("4", ["algo-1", "algo-2"], 2)
        assert (one["type"], one["data"], one["notes"]) == ("ml.p4d.24xlarge", None, [])
    alone = {name: one for name, one in about.items() if one["group"] == "data"}
    assert sorted(alone) == ["algo-3-None", "algo-4-None"]
    assert sorted(name for one in alone.values() for name in one["data"]) == ["a", "b", "c"]
    for one in alone.values():
        assert (one["rank"], one["nodes"], one["type"], one["hetero"]) == (None, 1, "ml.c5.18xlarge", "true")
        assert "not among the training groups (gpu)" in one["notes"][0]
        assert one["params"]["sagemaker_torch_distributed_enabled"] is True


def _with_share(store):
    from lightning_sagemaker.launch.request.without_sdk import fetch_from

    fetch = fetch_from(store)

    def found(uri, folder):
        if uri != "s3://bucket/share/":
            return fetch(uri, folder)
        for name in os.listdir("share"):
            Path(folder, name).touch()

    return found


def test_without_a_distribution_hosts_train_with_those_of_their_group(tmp_path):
    config = json.loads(RECORDED["hetero_mpi"]["ranks"]["algo-1-x"]["env"]["SM_RESOURCE_CONFIG"])
    config.update(current_host="algo-3", current_group_name="g2", current_instance_type="ml.p4d.24xlarge")
    (tmp_path / "input" / "config").mkdir(parents=True)
    (tmp_path / "input" / "config" / "resourceconfig.json").write_text(json.dumps(config))
    job = SageMakerJob.from_environment({"MASTER_ADDR": "algo-1", "MASTER_PORT": "7777"}, tmp_path)
    assert (job.hosts, job.num_nodes, job.node_rank, job.main_address) == (("algo-2", "algo-3"), 2, 1, "algo-2")
    assert "train together within their own group, here 'g2'" in job.notes[0]


def test_a_group_whose_hosts_are_not_known_is_no_guess(monkeypatch):
    said = []
    monkeypatch.setattr(lightning_groups, "write_failure", lambda message, lines: said.append(message))
    monkeypatch.setenv("SM_RESOURCE_CONFIG", json.dumps({"hosts": ["algo-1"], "current_host": "algo-1"}))
    with pytest.raises(SystemExit, match="does not say which hosts are in the instance group 'gpu'"):
        lightning_groups.training_hosts({"groups": ["gpu"]})
    assert len(said) == 1
