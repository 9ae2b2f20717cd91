# SPDX-License-Identifier: Apache-2.0
"""Scripts of both generations of SMDDP run on the shim, and are refused what SMDDP refuses."""

import os
from pathlib import Path

import pytest
import torch

from tests.conftest import Runs, fork_ranks, read_ranks
from tests.skips import needs_shards, only_cpu

WORKER = Path(__file__).with_name("shim_worker.py")
RELAXED = {"LIGHTNING_SAGEMAKER_SMDDP_STRICT": "0"}
KINDS = {
    "old": ("old", "torchrun", {}),
    "mpirun": ("backend", "mpirun", {}),
    "relaxed": ("backend", "mpirun", RELAXED),
    "torchrun": ("backend", "torchrun", {}),
    "mpirun that gathers": ("backend", "mpirun", {"SMDATAPARALLEL_OPTIMIZE_SDP": "true"}),
}
LACKING = {}
if torch.__version__.startswith("2.5."):
    LACKING["reduce_scatter"] = "RuntimeError: ProcessGroupGloo does not support reduce_scatter"
GATHERING = ["torchrun", "mpirun that gathers"]


def network() -> torch.nn.Module:
    """As in the worker, after backward."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model(torch.linspace(-1, 1, 32).reshape(8, 4)).square().mean().backward()
    return model


@pytest.fixture(scope="module")
def single_process_gradients() -> list[float]:
    return torch.cat([p.grad.flatten() for p in network().parameters()]).tolist()


@pytest.fixture(scope="module")
def single_process_weights() -> list[float]:
    return torch.cat([(p - p.grad).detach().flatten() for p in network().parameters()]).tolist()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    def launch(name: str) -> list[dict]:
        mode, launcher, environment = KINDS[name]
        folder = tmp_path_factory.mktemp(mode)
        fork_ranks(WORKER, mode, launcher, folder, processes=2, **environment)
        return read_ranks(folder)

    return Runs(launch)


@pytest.fixture(scope="module")
def old(runs):
    return runs["old"]


@pytest.fixture(scope="module")
def strict(runs):
    return runs["mpirun"]


@pytest.fixture(scope="module")
def relaxed(runs):
    return runs["relaxed"]


@only_cpu
def test_functions_of_the_old_api(old):
    for rank, result in enumerate(old):
        assert (result["available"], result["initialized_before"], result["initialized"]) == (True, False, True)
        assert (result["rank"], result["size"], result["local_rank"]) == (rank, 2, rank)
        assert (result["SUM"], result["AVERAGE"]) == ([3.0, 6.0], [1.5, 3.0])
        assert (result["MIN"], result["MAX"]) == ([1.0, 2.0], [2.0, 4.0])
        assert result["async_average"] == [0.5]
        assert result["broadcast"] == [1, 11]
        assert result["all_gather"] == [0, 7]
        assert result["all_to_all_single"] == [float(rank), 10.0 + rank]
        assert result["sub_group"].startswith("RuntimeError: SMDDP does not support: sub-groups")
        assert result["no_sync"] == [[float(rank)] * 2]


def test_the_old_api_says_what_to_use_instead(old):
    names = {name.rpartition(".")[2] for name in old[0]["warnings"]}
    assert {"init_process_group", "is_available", "is_initialized"} <= names


@pytest.mark.parametrize("kind", ["old", "mpirun", *GATHERING])
def test_gradients_equal_those_of_one_process(kind, runs, single_process_gradients):
    for result in runs[kind]:
        assert result["gradients"] == pytest.approx(single_process_gradients, abs=1e-7)


def test_backend_exists_only_after_the_import(strict):
    assert strict[0]["before"] != "done"
    assert "smddp" in strict[0]["before"].lower()
    assert (strict[0]["backend"], strict[0]["found"]) == ("smddp", True)


def test_what_smddp_supports(strict):
    for rank in strict:
        assert (rank["SUM"], rank["MIN"], rank["MAX"], rank["async"]) == ([3.0] * 2, [1.0] * 2, [2.0] * 2, [3.0] * 2)
        assert {rank[name] for name in ("all_gather", "broadcast", "barrier")} == {"done"}
        assert rank["objects"] == [{"rank": 0}, {"rank": 1}]
    assert strict[0]["reduce"] == [3.0, 3.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("AVG", "ReduceOp"),
        ("PRODUCT", "ReduceOp"),
        ("all_gather_into_tensor", "_allgather_base"),
        ("reduce_scatter_tensor", "_reduce_scatter_base"),
        ("reduce_scatter", "reduce_scatter"),
        ("all_to_all_single", "alltoall_base"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("barrier_device_ids", "device_ids"),
        ("new_group", "new_group"),
    ],
)
def test_what_smddp_refuses(strict, call, words):
    assert [rank[call] for rank in strict] == [f"RuntimeError: SMDDP does not support: {words}"] * 2


def test_point_to_point_is_refused(strict):
    assert [rank["send_recv"] for rank in strict] == [
        f"RuntimeError: SMDDP does not support: {name}" for name in ("send", "recv")
    ]


def test_the_relaxed_shim_does_what_gloo_can(relaxed):
    assert relaxed[0]["AVG"] == [1.5, 1.5]
    assert relaxed[0]["PRODUCT"] == [2.0, 2.0]
    names = (
        "all_gather_into_tensor",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "all_to_all_single",
        "gather",
        "scatter",
    )
    expected = {**dict.fromkeys(names, "done"), **LACKING}
    for rank in relaxed:
        assert {name: rank[name] for name in names} == expected
        assert rank["send_recv"] == rank["new_group"] == rank["barrier_device_ids"] == "done"


@pytest.mark.parametrize("kind", GATHERING)
def test_nothing_is_refused_where_shards_are_gathered(kind, runs):
    """AWS's guide: all but AllGather falls back to nccl, and sub-groups are refused in jobs of DDP only."""
    names = ["all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all_single", "gather"]
    names += ["scatter", "send_recv", "new_group"]
    for rank in runs[kind]:
        assert {name: rank[name] for name in names} == {**dict.fromkeys(names, "done"), **LACKING}
        assert (rank["AVG"], rank["PRODUCT"]) == ([1.5, 1.5], [2.0, 2.0])
        assert rank["barrier_device_ids"] == "RuntimeError: SMDDP does not support: device_ids"  # since 1.4, in both


@needs_shards
@pytest.mark.parametrize("version", ["fsdp", "fully_shard"])
def test_fsdp_under_each_launcher(version, runs, single_process_weights):
    for kind in GATHERING:
        for rank in runs[kind]:
            assert rank[version] == pytest.approx(single_process_weights, abs=1e-6)
    # On a CPU, FSDP's first version gathers a list of tensors, so that its gradients are the first to be refused.
    on_cpu = os.environ.get("LIGHTNING_SAGEMAKER_TEST_ACCELERATOR") != "cuda"
    first = "_reduce_scatter_base" if version == "fsdp" and on_cpu else "_allgather_base"
    assert [rank[version] for rank in runs["mpirun"]] == [f"RuntimeError: SMDDP does not support: {first}"] * 2
