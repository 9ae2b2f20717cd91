# SPDX-License-Identifier: Apache-2.0
"""Every rank of 29 recorded runs of the real containers is read correctly, with and without the container's files."""

import json
from pathlib import Path

import pytest

from lightning_sagemaker.job import Distribution as D
from lightning_sagemaker.job import Launcher as L
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.selection import select_strategy

RUNS = json.loads((Path(__file__).parent.parent / "data" / "recorded_environments.json").read_text())

ONE, TWO, TURNED = ("algo-1",), ("algo-1", "algo-2"), ("algo-2", "algo-1")

# Run -> what its job asked for, launcher, hosts in rank order, processes per host, address of rank 0, selected strategy.
EXPECTED = {
    "none1": (D.NONE, L.NONE, ONE, None, "algo-1", "single_device"),
    "none2": (D.NONE, L.NONE, TWO, None, "algo-1", "ddp"),
    "none2u": (D.NONE, L.NONE, TWO, None, "algo-1", "ddp"),
    "td1": (D.TORCH_DISTRIBUTED, L.TORCHRUN, ONE, 2, "algo-1", "ddp"),
    "td2": (D.TORCH_DISTRIBUTED, L.TORCHRUN, TWO, 2, "algo-1", "ddp"),
    "td2u": (D.TORCH_DISTRIBUTED, L.TORCHRUN, TURNED, 2, "algo-2", "ddp"),
    "mpi1": (D.MPI, L.MPI, ONE, 2, "algo-1", "ddp"),
    "mpi2": (D.MPI, L.MPI, TWO, 2, "algo-1", "ddp"),
    "smddp1": (D.SMDDP, L.MPI, ONE, 2, "algo-1", "ddp"),
    "smddp1stub": (D.SMDDP, L.MPI, ONE, 2, "algo-1", "ddp"),
    "smddp2": (D.SMDDP, L.MPI, TWO, 2, "algo-1", "ddp"),
    "ddp1": (D.DDP, L.MPI, ONE, 2, "algo-1", "ddp"),
    "dp_td": (D.SMDDP, L.TORCHRUN, ONE, 2, "algo-1", "ddp"),
    "smpv1_2": (D.MODEL_PARALLEL, L.MPI, TWO, 2, "algo-1", "smp"),
    "smpv1_nompi": (D.MODEL_PARALLEL, L.NONE, ONE, None, "algo-1", "smp"),
    "smpv2_2": (D.MODEL_PARALLEL, L.TORCHRUN, TWO, 2, "algo-1", "smp"),
    "min1": (D.NONE, L.NONE, ONE, None, "algo-1", "single_device"),
    "min1td": (D.TORCH_DISTRIBUTED, L.TORCHRUN, ONE, 2, "algo-1", "ddp"),
    "nofw_td": (D.TORCH_DISTRIBUTED, L.NONE, ONE, None, "127.0.0.1", "single_device"),
    "nofw_mpi": (D.MPI, L.MPI, ONE, 2, "127.0.0.1", "ddp"),
    "lists": (D.NONE, L.NONE, ONE, None, "algo-1", "single_device"),
    "v3none": (D.NONE, L.NONE, TWO, None, "algo-1", "ddp"),
    "v3td": (D.TORCH_DISTRIBUTED, L.TORCHRUN, TWO, 2, "algo-1", "ddp"),
    "v3smp": (D.MODEL_PARALLEL, L.TORCHRUN, TWO, 2, "algo-1", "smp"),
    # SDK 3's driver starts as many processes as one host has, all of them on the first host.
    "v3mpi": (D.MPI, L.MPI, ONE, 2, "algo-1", "ddp"),
    "v3td1def": (D.TORCH_DISTRIBUTED, L.TORCHRUN, ONE, 1, "algo-1", "single_device"),
    "v3cmd": (D.NONE, L.NONE, ONE, None, "algo-1", "single_device"),
}
# Heterogeneous clusters: each host differs.
EXPECTED_BY_HOST = {
    ("hetero_td", "algo-1"): (D.TORCH_DISTRIBUTED, L.TORCHRUN, ONE, 2, "algo-1", "ddp"),
    ("hetero_td", "algo-2"): (D.TORCH_DISTRIBUTED, L.TORCHRUN, ("algo-2",), 2, "algo-2", "ddp"),
    ("hetero_mpi", "algo-1"): (D.MPI, L.NONE, ONE, None, "127.0.0.1", "single_device"),
    ("hetero_mpi", "algo-2"): (D.MPI, L.MPI, ("algo-2", "algo-3"), 2, "algo-2", "ddp"),
    ("hetero_mpi", "algo-3"): (D.MPI, L.MPI, ("algo-2", "algo-3"), 2, "algo-2", "ddp"),
}


def test_every_recording_is_covered():
    assert set(RUNS) == set(EXPECTED) | {run for run, _ in EXPECTED_BY_HOST}
    assert len(RUNS) == 29


def environment_of(run: str, rank: str) -> dict[str, str]:
    return RUNS[run]["shared"] | RUNS[run]["ranks"][rank]["env"]


def read(run: str, rank: str, root: Path, *, with_files: bool) -> SageMakerJob:
    env = environment_of(run, rank)
    if with_files:
        config = json.loads(env["SM_RESOURCE_CONFIG"])
        config["current_host"] = RUNS[run]["ranks"][rank]["host"]  # the variable is the first host's under mpirun
        folder = root / "input" / "config"
        folder.mkdir(parents=True)
        (folder / "resourceconfig.json").write_text(json.dumps(config))
    return SageMakerJob.from_environment(env, root)


@pytest.mark.parametrize("with_files", [False, True], ids=["variables", "files"])
@pytest.mark.parametrize(("run", "rank"), [(run, rank) for run in RUNS for rank in RUNS[run]["ranks"]])
def test_recorded_rank(run, rank, with_files, tmp_path):
    host, _, number = rank.rpartition("-")
    asked, launcher, hosts, local_size, address, strategy = EXPECTED.get(run) or EXPECTED_BY_HOST[run, host]
    job = read(run, rank, tmp_path, with_files=with_files)
    assert (job.distribution, job.launcher) == (asked, launcher)
    assert (job.in_container, job.name, job.simulated) == (True, "job-1", False)
    assert (job.hosts, job.current_host, job.num_nodes) == (hosts, host, len(hosts))
    assert job.node_rank == hosts.index(host)
    assert job.main_address == address
    assert select_strategy(job).name == strategy
    if number == "x":  # no launcher
        assert (job.global_rank, job.local_rank, job.world_size, job.local_world_size) == (None,) * 4
    else:
        assert (job.global_rank, job.world_size) == (int(number), local_size * len(hosts))
        assert (job.local_rank, job.local_world_size) == (int(number) % local_size, local_size)


def test_hyperparameters_are_decoded(tmp_path):
    job = read("lists", "algo-1-x", tmp_path, with_files=False)
    assert job.hyperparameters["f"] == 1e-05
    assert job.hyperparameters["names"] == ["a", "b"]
    assert job.hyperparameters["ver"] == "007"
    assert job.hyperparameters["none"] is None
    assert job.hyperparameters["my-hp"] == "a b'c"


def test_model_parallel_parameters_of_both_generations(tmp_path):
    first = read("smpv1_2", "algo-2-3", tmp_path, with_files=False)
    assert first.model_parallel_parameters == {"ddp": True, "microbatches": 4, "partitions": 2}
    second = read("v3smp", "algo-2-3", tmp_path, with_files=False)
    assert second.model_parallel_parameters == {"tensor_parallel_degree": 2}


def test_channels_without_those_of_the_sdk(tmp_path):
    job = read("v3td", "algo-1-0", tmp_path, with_files=False)
    assert job.channels == {"train": Path("/opt/ml/input/data/train")}


def test_instance_facts(tmp_path):
    job = read("hetero_mpi", "algo-3-2", tmp_path, with_files=True)
    assert (job.instance_group, job.instance_type, job.network_interface) == ("g2", "ml.p4d.24xlarge", "eth0")
    assert [(g.name, g.hosts) for g in job.instance_groups] == [("g1", ("algo-1",)), ("g2", ("algo-2", "algo-3"))]


@pytest.mark.parametrize(
    ("run", "rank", "words"),
    [
        ("v3mpi", "algo-1-0", "has 2 hosts, but mpi started 2 process(es) on 1 of them"),
        ("nofw_td", "algo-1-x", "asks for torch_distributed (SM_FRAMEWORK_PARAMS), but no launcher started"),
        ("hetero_mpi", "algo-1-x", "instance group 'g1', which is not among the training groups (g2)"),
    ],
)
def test_where_asked_and_found_differ_a_line_says_so(run, rank, words, tmp_path):
    (note,) = read(run, rank, tmp_path, with_files=False).notes
    assert words in note


@pytest.mark.parametrize(("run", "rank"), [("td2", "algo-2-3"), ("mpi2", "algo-2-2"), ("v3none", "algo-2-x")])
def test_no_note_where_all_is_as_asked(run, rank, tmp_path):
    assert read(run, rank, tmp_path, with_files=True).notes == ()
