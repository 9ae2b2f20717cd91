# SPDX-License-Identifier: Apache-2.0
"""Training on two simulated hosts: every launcher, both contracts, with no argument but the strategy."""

import io
import sys
from pathlib import Path

import pytest

from lightning_sagemaker.launch import run_local_cluster
from lightning_sagemaker.simulator import network
from tests.conftest import read_ranks
from tests.end_to_end.single_process import GRADIENTS, WEIGHTS

WORKER = Path(__file__).with_name("worker.py")

# Distribution, contract, processes per host, the script's arguments -> launcher as the job reads it, strategy, backend.
CASES = {
    "smddp": (("smddp", "toolkit", 2, ["--twins"]), ("smddprun", "SMDDPStrategy", "smddp_composite")),
    "smddp-one-each": (("smddp", "toolkit", 1, []), ("smddprun", "SMDDPStrategy", "smddp_composite")),
    "smddp-sdk3": (("smddp", "modeltrainer", 1, []), ("torchrun", "SMDDPStrategy", "smddp_composite")),
    "explicit": (
        ("torch_distributed", "modeltrainer", 1, ["--strategy", "smddp"]),
        ("torchrun", "SMDDPStrategy", "smddp_composite"),
    ),
    "torchrun": (("torch_distributed", "toolkit", 2, ["--twins"]), ("torchrun", "SageMakerDDPStrategy", "gloo")),
    "mpi": (("mpi", "toolkit", 2, []), ("mpi", "SageMakerDDPStrategy", "gloo")),
    "ddp": (("ddp", "toolkit", 1, []), ("mpi", "SageMakerDDPStrategy", "gloo")),
    "no-launcher": (("none", "toolkit", 1, ["--devices", "2"]), ("none", "SageMakerDDPStrategy", "gloo")),
}


def launch(folder: Path, distribution: str, contract: str, processes: int, arguments: list[str], **more) -> list[dict]:
    output = io.StringIO()
    result = run_local_cluster(
        [sys.executable, str(WORKER), "--out", str(folder / "out"), *arguments],
        hosts=2,
        processes_per_host=processes,
        distribution=distribution,
        contract=contract,
        root=folder / "root",
        environment={"OMP_NUM_THREADS": "1"},
        timeout=120,
        output=output,
        **more,
    )
    assert result.returncode == 0, output.getvalue()[-6000:]
    return read_ranks(folder / "out")


SLOW = {"smddp-one-each", "smddp-sdk3", "explicit", "mpi", "ddp"}  # much as others; `make test-slow` runs them


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES]
)
def case(request, tmp_path_factory):
    arguments, expected = CASES[request.param]
    processes = 2 if "--devices" in arguments[3] else arguments[2]
    return request.param, launch(tmp_path_factory.mktemp(request.param), *arguments), expected, processes


def test_two_hosts(case):
    """Ranks, hosts, shards and weights are right on every rank, for every launcher."""
    name, ranks, (launcher, strategy, backend), processes = case
    world = 2 * processes
    assert [rank["rank"] for rank in ranks] == list(range(world))
    for rank in ranks:
        facts = (rank["world_size"], rank["num_nodes"], rank["num_devices"])
        assert facts == (world, 2, processes)
        assert (rank["node_rank"], rank["local_rank"]) == divmod(rank["rank"], processes)
        assert (rank["host"], rank["hosts"]) == (f"algo-{rank['node_rank'] + 1}", ["algo-1", "algo-2"])
        assert rank["root"].endswith(rank["host"])
        assert (rank["launcher"], rank["simulated"]) == (launcher, True)
        assert (rank["strategy"], rank["environment"], rank["backend"]) == (strategy, "SageMakerEnvironment", backend)
        assert rank["weights"] == ranks[0]["weights"] == pytest.approx(WEIGHTS, abs=1e-6)
    assert sorted(index for rank in ranks for index in rank["seen"]) == list(range(32))
    # Before any Trainer exists, one rank at most believes to be rank zero, so that a line is logged once.
    assert sum(rank["early_rank"] == 0 for rank in ranks if rank["local_rank"] == 0) == 1, name


def test_contradicting_arguments_are_refused_and_fabric_agrees(case):
    name, ranks, (_, strategy, _), processes = case
    if "fabric" not in ranks[0]:
        return
    for rank in ranks:
        assert "num_nodes=3 was set, but this job has 2 host(s)" in rank["refusals"]["num_nodes"], name
        assert "set num_nodes=2" in rank["refusals"]["num_nodes"]
        assert f"devices=5 was set, but the launcher started {processes} process(es)" in rank["refusals"]["devices"]
        fabric = rank["fabric"]
        assert (fabric["world_size"], fabric["rank"], fabric["node_rank"]) == (4, rank["rank"], rank["node_rank"])
        assert fabric["strategy"] == f"Fabric{strategy}"
        assert fabric["gradients"] == pytest.approx(GRADIENTS, abs=1e-6)


@pytest.mark.skipif(network.obstacle() is not None, reason=str(network.obstacle()))
@pytest.mark.parametrize("distribution", ["torch_distributed", "smddp"])
def test_two_hosts_with_networks_of_their_own(tmp_path, distribution):
    """Real names, real addresses, and for smddp a real mpirun from host to host."""
    ranks = launch(tmp_path, distribution, "toolkit", 1, [], network="netns:1gbit")
    for rank in ranks:
        assert rank["weights"] == pytest.approx(WEIGHTS, abs=1e-6)
        assert rank["hostname"] == rank["host"]
        assert rank["address"] == "algo-1"
