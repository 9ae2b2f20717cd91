# SPDX-License-Identifier: Apache-2.0
"""Scripts of both generations of SMDDP run on the shim, and are refused what SMDDP refuses."""

from pathlib import Path

import pytest
import torch

from tests.conftest import read_ranks, torchrun

WORKER = Path(__file__).with_name("shim_worker.py")


@pytest.fixture(scope="module")
def single_process_gradients() -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model(torch.linspace(-1, 1, 32).reshape(8, 4)).square().mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).tolist()


def launch(tmp_path_factory, mode: str, **environment: str) -> list[dict]:
    folder = tmp_path_factory.mktemp(mode)
    torchrun(WORKER, mode, folder, processes=2, **environment)
    return read_ranks(folder)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return launch(tmp_path_factory, "old")


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    return launch(tmp_path_factory, "backend")


@pytest.fixture(scope="module")
def relaxed(tmp_path_factory):
    return launch(tmp_path_factory, "backend", LIGHTNING_SAGEMAKER_SMDDP_STRICT="0")


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


@pytest.mark.parametrize("script", ["old", "strict"])
def test_gradients_equal_those_of_one_process(script, request, single_process_gradients):
    for result in request.getfixturevalue(script):
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
    expected = dict.fromkeys(names, "done")
    if torch.__version__.startswith("2.5."):
        expected["reduce_scatter"] = "RuntimeError: ProcessGroupGloo does not support reduce_scatter"
    for rank in relaxed:
        assert {name: rank[name] for name in names} == expected
        assert rank["send_recv"] == rank["new_group"] == "done"
