# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster against the real programs of AWS's containers, on the same job and the same files.

Every rank trains with ``strategy="sagemaker"`` and writes down what it sees, here and there.
"""

import io
import json
import shutil
from pathlib import Path

import pytest

from lightning_sagemaker.launch import run_local_cluster
from lightning_sagemaker.simulator import network
from tests.end_to_end.single_process import WEIGHTS
from tests.launch import real_containers

WORKER = Path(__file__).with_name("worker.py")

pytestmark = pytest.mark.skipif(network.obstacle() is not None, reason=str(network.obstacle()))

COMPARED = ("SM_", "SAGEMAKER_", "TORCHELASTIC_", "OMPI_COMM_WORLD_", "SMDATAPARALLEL_", "NCCL_", "FI_", "RDMAV_")
COMPARED += ("MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "NODE_RANK", "CURRENT_HOST", "TRAINING_JOB")
DIFFERENT = {
    "SAGEMAKER_BASE_DIR": "names the simulated host's folder; the real one is /opt/ml",
    "TORCHELASTIC_ERROR_FILE": "a temporary file of torchrun",
    "TRAINING_JOB_ARN": "set by the service, not by a program of the container",
    "SAGEMAKER_TRAINING_MODULE": "set by the image, not by a program of the container",
}
SMDDPRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "SMDATAPARALLEL_LOCAL_RANK"}
"""Set by AWS's closed ``smddprun``, which the simulated cluster stands in for and the real toolkit does without here."""

HYPERPARAMETERS = {
    "epochs": 2,
    "lr": 1e-05,
    "flag": True,
    "empty": None,
    "names": ["a", "b"],
    "nested": {"a": 1},
    "text": "a b",
    "version": "007",
    "x": 1,
}

# Name -> contract, distribution, hosts, processes per host, what is set only by the simulated cluster.
CASES = {
    "toolkit-none": ("toolkit", "none", 2, 1, set()),
    "toolkit-torchrun": ("toolkit", "torch_distributed", 2, 2, set()),
    "toolkit-smddp": ("toolkit", "smddp", 1, 2, SMDDPRUN),
    "toolkit-mpi": ("toolkit", "mpi", 1, 2, set()),
    "drivers-none": ("modeltrainer", "none", 2, 1, set()),
    "drivers-torchrun": ("modeltrainer", "torch_distributed", 2, 2, set()),
}


def simulate(folder: Path, code: Path, contract: str, distribution: str, hosts: int, processes: int) -> Path:
    output = io.StringIO()
    result = run_local_cluster(
        ["train.py"],
        hosts=hosts,
        processes_per_host=processes,
        distribution=distribution,
        contract=contract,
        root=folder,
        source_dir=code,
        hyperparameters=HYPERPARAMETERS,
        channels={"train": code},
        environment={"OMP_NUM_THREADS": "1"},
        network="netns",
        timeout=120,
        output=output,
    )
    assert result.returncode == 0, output.getvalue()[-6000:]
    return folder


def copy_job(simulated: Path, folder: Path, code: Path, contract: str) -> str:
    """The same files for the real programs, which find them in /opt/ml; return the job's name."""
    for host in sorted(path.name for path in simulated.glob("algo-*")):
        shutil.copytree(simulated / host / "input" / "config", folder / host / "input" / "config")
        for name in ("output/data", "model", "checkpoints", "input/data/train"):
            (folder / host / name).mkdir(parents=True)
        shutil.copytree(code, folder / host / ("code" if contract == "toolkit" else "input/data/code"))
        for path in (folder / host / "input" / "config").iterdir():
            path.write_text(path.read_text().replace(str(simulated / host), "/opt/ml"))
    return json.loads(read_rank(simulated / "algo-1", 0)["variables"]["SM_TRAINING_ENV"])["job_name"]


def read_rank(folder: Path, rank: int) -> dict:
    return json.loads((folder / "output" / "data" / f"rank-{rank}.json").read_text())


SLOW = {"toolkit-mpi", "toolkit-smddp", "toolkit-torchrun", "drivers-none"}
"""Much as others; `make test-slow` runs them."""

PARAMS = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES]


@pytest.fixture(scope="module", params=PARAMS)
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    contract, distribution, hosts, processes, _ = CASES[request.param]
    lacking = None
    if contract == "toolkit":
        lacking = real_containers.no_runner() if distribution in ("mpi", "smddp") else real_containers.no_toolkit()
    if lacking is not None:
        pytest.skip(lacking)
    (folder / "code").mkdir()
    shutil.copy(WORKER, folder / "code" / "train.py")
    simulated = simulate(folder / "simulated", folder / "code", contract, distribution, hosts, processes)
    real, names = folder / "real", [f"algo-{number + 1}" for number in range(hosts)]
    variables = {
        "TRAINING_JOB_NAME": copy_job(simulated, real, folder / "code", contract),
        "AWS_REGION": "us-east-1",
        "LIGHTNING_SAGEMAKER_SIMULATED": "1",  # there is no GPU, which SMDDP would be refused for
    }
    if contract == "toolkit":
        real_containers.run_toolkit(real, names, **variables)
    else:
        config = {"process_count_per_node": processes, "smp": None} if distribution != "none" else None
        real_containers.run_drivers(real, names, "train.py", config, **variables)
    places = [(f"algo-{rank // processes + 1}", rank) for rank in range(hosts * processes)]
    return (
        request.param,
        [read_rank(simulated / host, rank) for host, rank in places],
        [read_rank(real / host, rank) for host, rank in places],
        [str(simulated / host) for host, _ in places],
    )


def compared(variables: dict[str, str], base: str) -> dict[str, object]:
    """What a rank was told, without paths of this machine; JSON decoded, since the order in it means nothing."""
    found = {}
    for name, value in variables.items():
        if name.startswith(COMPARED) and name not in DIFFERENT:
            text = value.replace(base, "/opt/ml")
            found[name] = json.loads(text) if text.startswith(("{", "[")) else text
    return found


def test_every_rank_sees_the_same_variables(case):
    name, simulated, real, bases = case
    for ours, theirs, base in zip(simulated, real, bases, strict=True):
        mine, there = compared(ours["variables"], base), compared(theirs["variables"], base)
        assert {variable for variable in mine if variable not in there} == CASES[name][4]
        assert {variable: mine.get(variable) for variable in there} == there


def test_every_rank_is_started_alike(case):
    _, simulated, real, bases = case
    for ours, theirs, base in zip(simulated, real, bases, strict=True):
        assert ours["argv"] == theirs["argv"]
        assert ours["cwd"].replace(base, "/opt/ml") == theirs["cwd"]
        assert ours["hostname"] == theirs["hostname"]


def test_the_job_is_read_alike_and_trains_alike(case):
    _, simulated, real, _ = case
    for ours, theirs in zip(simulated, real, strict=True):
        for fact in ("rank", "local_rank", "node_rank", "world_size", "num_nodes", "hosts", "host", "distribution"):
            assert ours[fact] == theirs[fact]
        for fact in ("strategy", "environment", "backend", "address", "hyperparameters", "channels"):
            assert ours[fact] == theirs[fact]
        assert ours["seen"] == theirs["seen"]
        assert ours["weights"] == theirs["weights"]
        assert theirs["weights"] == pytest.approx(WEIGHTS, abs=1e-6)
