# SPDX-License-Identifier: Apache-2.0
"""The driver in a container's place: an /opt/ml, network and process numbers of its own, the SDK's drivers as sent."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_sagemaker.launch import Estimator
from lightning_sagemaker.simulator import network
from lightning_sagemaker.simulator.contract import GROUP
from tests.conftest import is_contract_variable
from tests.launch import real_containers
from tests.launch.conftest import has_sdk
from tests.launch.seeds import ROLE

pytestmark = pytest.mark.skipif(network.obstacle() is not None, reason=str(network.obstacle()))
has_sdk()  # from now on it can be imported

SCRIPT = """
import json, os, signal, sys, time, pathlib

rank = os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
names = ("SM_FRAMEWORK_PARAMS", "SM_HP_MP_PARAMETERS", "NCCL_SOCKET_IFNAME", "NCCL_PROTO", "WORLD_SIZE", "MASTER_ADDR",
         "SMDATAPARALLEL_USE_SINGLENODE", "OMPI_COMM_WORLD_SIZE", "SAGEMAKER_JOB_NAME", "USER_SET", "SM_HPS", "SM_CHANNELS",
         "SM_CHANNEL_MY-DATA", "SM_HP_PROMPT", "SM_HP_TRAINER.MAX_EPOCHS", "SM_HP_TRAINER_MAX_EPOCHS")
facts = {"argv": sys.argv[1:], "cwd": os.getcwd(), **{name: os.environ.get(name) for name in names}}
model = pathlib.Path(os.environ.get("SM_MODEL_DIR", "/opt/ml/model"))
(model / f"rank-{rank}.json").write_text(json.dumps(facts))

def stop(*_):
    (model / f"stopped-{rank}").touch()
    time.sleep(1.0)  # longer than nothing: a checkpoint is written here
    (model / f"saved-{rank}").touch()
    sys.exit(143)

if "--wait" in sys.argv:
    signal.signal(signal.SIGTERM, stop)
    (model / f"ready-{rank}").touch()
    time.sleep(60)
if "--fail" in sys.argv:
    password = os.environ["DB_PASSWORD"]
    raise ValueError("no such column: amount " + password)
"""


def container(root: Path, source: Path, hosts: list[str], inputs: object = None, **arguments) -> list[str]:
    """Lay out each host's /opt/ml from the request that the SDK would send; return the container's command."""
    from lightning_sagemaker.launch.request.offline import sent_request

    (source / "train.py").write_text(SCRIPT)
    estimator = Estimator(
        entry_point="train.py", source_dir=str(source), role=ROLE, instance_type="ml.p4d.24xlarge", region="us-east-1",
        instance_count=len(hosts), image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/own:1", include_plugin=False,
        **arguments,
    )  # fmt: skip
    request = sent_request(estimator.plan(inputs), root / "store")
    for host in hosts:
        base = root / host
        for name in ("input/config", "input/data", "model", "output/data", "checkpoints"):
            (base / name).mkdir(parents=True, exist_ok=True)
        group = {"instance_group_name": GROUP, "instance_type": "ml.p4d.24xlarge", "hosts": hosts}
        resources = {
            "current_host": host, "hosts": hosts, "current_instance_type": "ml.p4d.24xlarge", "current_group_name": GROUP,
            "instance_groups": [group], "network_interface_name": "eth0",
        }  # fmt: skip
        channels = {one["ChannelName"]: {"TrainingInputMode": "File"} for one in request["InputDataConfig"]}
        for name, content in (
            ("resourceconfig", resources),
            ("hyperparameters", request.get("HyperParameters", {})),
            ("inputdataconfig", channels),
        ):
            (base / "input" / "config" / f"{name}.json").write_text(json.dumps(content))
        for channel in request["InputDataConfig"]:
            where = root / "store" / channel["DataSource"]["S3DataSource"]["S3Uri"].removeprefix("s3://")
            target = base / "input" / "data" / channel["ChannelName"]
            if where.is_dir():
                shutil.copytree(where, target)
            else:
                target.mkdir()
                if where.exists():
                    shutil.copy(where, target)
    specification = request["AlgorithmSpecification"]
    return [*specification["ContainerEntrypoint"], *specification["ContainerArguments"]]


ENVIRONMENT = {"TRAINING_JOB_NAME": "job", "AWS_REGION": "us-east-1"}


def facts(root: Path, host: str, rank: int) -> dict:
    return json.loads((root / host / "model" / f"rank-{rank}.json").read_text())


def test_two_hosts_of_two_processes(tmp_path):
    (tmp_path / "source").mkdir()
    command = container(
        tmp_path, tmp_path / "source", ["algo-1", "algo-2"], distribution={"torch_distributed": {"enabled": True}},
        hyperparameters={"epochs": 2, "flag": True, "l": 0.5, "log_every": 3, "name": "a b"},
    )  # fmt: skip
    for host in ("algo-1", "algo-2"):
        path = tmp_path / host / "input" / "data" / "sm_drivers" / "distributed.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "process_count_per_node": 2}))
    real_containers.run_hosts(tmp_path, ["algo-1", "algo-2"], command, {**ENVIRONMENT, "NCCL_PROTO": "own"})
    for rank in range(4):
        seen = facts(tmp_path, f"algo-{1 + rank // 2}", rank)
        # In the toolkit's way: sorted, one dash for one letter, words for booleans; none is taken by torchrun.
        assert seen["argv"] == ["--epochs", "2", "--flag", "True", "-l", "0.5", "--log_every", "3", "--name", "a b"]
        flags = json.loads(seen["SM_FRAMEWORK_PARAMS"])
        assert flags == {"sagemaker_torch_distributed_enabled": True, "sagemaker_instance_type": "ml.p4d.24xlarge"}
        assert (seen["WORLD_SIZE"], seen["MASTER_ADDR"], seen["NCCL_SOCKET_IFNAME"]) == ("4", "algo-1", "eth0")
        assert seen["NCCL_PROTO"] == "own"
        assert seen["cwd"] == "/opt/ml/input/data/code"
        assert seen["SAGEMAKER_JOB_NAME"] == "job"


def test_what_the_sdks_start_script_cannot_carry_arrives(tmp_path):
    """Quotes, texts that look like JSON, and names that are no variables': as SDK 2's container hands them over."""
    (tmp_path / "source").mkdir()
    values = {"prompt": "it's", "version": "1.10", "trainer.max_epochs": 3, "names": ["a", "it's"], "json": '{"a": 1}'}
    inputs = {"my-data": "s3://bucket/data/", "other": "s3://bucket/other/"}
    command = container(tmp_path, tmp_path / "source", ["algo-1"], inputs, hyperparameters=values)
    (tmp_path / "algo-1" / "input" / "data" / "my_data" / "file").touch()
    real_containers.run_hosts(tmp_path, ["algo-1"], command, ENVIRONMENT)
    seen = facts(tmp_path, "algo-1", 0)
    assert json.loads(seen["SM_HPS"]) == values
    assert seen["argv"] == [
        "--json", '{"a": 1}', "--names", '["a", "it\'s"]', "--prompt", "it's", "--trainer.max_epochs", "3",
        "--version", "1.10",
    ]  # fmt: skip
    assert (seen["SM_HP_PROMPT"], seen["SM_HP_TRAINER.MAX_EPOCHS"]) == ("it's", "3")
    assert seen["SM_HP_TRAINER_MAX_EPOCHS"] is None
    assert seen["SM_CHANNEL_MY-DATA"] == "/opt/ml/input/data/my-data"
    assert {"my-data", "other"} <= set(json.loads(seen["SM_CHANNELS"]))
    assert "my_data" not in json.loads(seen["SM_CHANNELS"])
    assert (tmp_path / "algo-1" / "input" / "data" / "my-data").is_symlink()


def start_as_first_process(root: Path, command: list[str], **more: str) -> subprocess.Popen:
    """The container's command as process 1 of its process numbers, which SageMaker sends its signals to."""
    clean = {name: value for name, value in os.environ.items() if not is_contract_variable(name)}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    inside = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--uts", "--", "sh", "-c", real_containers.ENTER]
    return subprocess.Popen(
        [*inside, "enter", str(root / "algo-1"), "localhost", *command],  # there is no network here that knows algo-1
        env={**clean, **ENVIRONMENT, "PATH": path, "OMP_NUM_THREADS": "1", **more},
        stdout=(root / "log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@pytest.mark.parametrize("recovery", ["restart", "in_job"])
def test_the_first_process_passes_sigterm_on(tmp_path, recovery):
    """``supervise`` hears of it before its ranks end, which it would replace otherwise."""
    (tmp_path / "source").mkdir()
    command = container(
        tmp_path, tmp_path / "source", ["algo-1"], distribution="torch_distributed", hyperparameters={"wait": ""},
        recovery=recovery,
    )  # fmt: skip
    path = tmp_path / "algo-1" / "input" / "data" / "sm_drivers" / "distributed.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "process_count_per_node": 2}))
    process = start_as_first_process(tmp_path, command)
    model, deadline = tmp_path / "algo-1" / "model", time.monotonic() + 60
    try:
        while len(list(model.glob("ready-*"))) < 2:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.05)
        (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        process.wait(30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert {path.name for path in model.glob("saved-*")} == {"saved-0", "saved-1"}, (tmp_path / "log").read_text()[
        -3000:
    ]
    assert process.returncode == 143
    log = (tmp_path / "log").read_text()
    assert ("supervise, which replaces processes that die" in log) == (recovery == "in_job")
    assert "starting a replacement" not in log


def test_a_failure_is_written_down_without_secrets(tmp_path):
    (tmp_path / "source").mkdir()
    command = container(tmp_path, tmp_path / "source", ["algo-1"], hyperparameters={"fail": ""})
    process = start_as_first_process(tmp_path, command, DB_PASSWORD="hunter2hunter2")
    assert process.wait(60) == 1
    reason = (tmp_path / "algo-1" / "output" / "failure").read_text()
    assert reason.startswith("The program on algo-1 failed: ValueError: no such column: amount ***\n")
    assert "Traceback" in reason
    assert "hunter2" not in reason


def test_requirements_that_cannot_be_installed_end_the_job(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "requirements.txt").write_text("./no-such-package\n")
    command = container(tmp_path, tmp_path / "source", ["algo-1"])
    process = start_as_first_process(tmp_path, command)
    assert process.wait(60) != 0
    reason = (tmp_path / "algo-1" / "output" / "failure").read_text()
    assert reason.startswith("requirements.txt cannot be installed: ERROR")
    assert not list((tmp_path / "algo-1" / "model").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(real_containers.no_runner() is not None, reason=str(real_containers.no_runner()))
def test_with_awss_library_in_the_image_the_toolkit_starts_mpirun(tmp_path):
    """The real toolkit and a real mpirun; AWS's closed ``smdistributed`` and ``smddprun`` are stood in for."""
    (tmp_path / "source").mkdir()
    image = tmp_path / "image"
    (image / "smdistributed").mkdir(parents=True)
    (image / "smdistributed" / "__init__.py").touch()
    smddprun = image / "smddprun"
    smddprun.write_text(
        "#!/bin/sh\nexport RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK"
        ' WORLD_SIZE=$OMPI_COMM_WORLD_SIZE\nexec "$@"\n'
    )
    smddprun.chmod(0o755)
    distribution = {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": "-x USER_SET=yes"}}}
    command = container(
        tmp_path, tmp_path / "source", ["algo-1"], distribution={"mpi": {"enabled": True, "processes_per_host": 2}},
        hyperparameters={"epochs": 2, "flag": True},
    )  # fmt: skip
    from lightning_sagemaker.launch.spec.distribution import parse_distribution

    path = tmp_path / "algo-1" / "input" / "data" / "sm_drivers" / "distributed.json"
    asked = parse_distribution(distribution)
    flags = {**asked.flags, "sagemaker_mpi_num_of_processes_per_host": 2}  # there is no GPU to count
    path.write_text(json.dumps({**asked.to_json(), "flags": flags}))
    environment = {
        **ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join((str(real_containers.TOOLKIT), str(image))),
        "PATH": real_containers.search_path(tmp_path / "image", image),
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        "USER_SET": "yes",
    }
    log = real_containers.run_hosts(tmp_path, ["algo-1"], command, environment)
    assert "mpirun with AWS's smdistributed, started by the image's training toolkit" in log
    for rank in range(2):
        seen = facts(tmp_path, "algo-1", rank)
        assert (seen["OMPI_COMM_WORLD_SIZE"], seen["WORLD_SIZE"]) == ("2", "2")
        assert seen["SMDATAPARALLEL_USE_SINGLENODE"] == "1"
        assert seen["argv"] == ["--epochs", "2", "--flag", "True"]
        assert json.loads(seen["SM_FRAMEWORK_PARAMS"])["sagemaker_distributed_dataparallel_enabled"] is True
