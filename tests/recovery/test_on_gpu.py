# SPDX-License-Identifier: Apache-2.0
"""What a job that recovers does about nccl, without a GPU; `make gpu` kills ranks that have one."""

import os
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from lightning_sagemaker.collectives.async_max import AsyncMaxReduce
from lightning_sagemaker.recovery import on_gpu
from lightning_sagemaker.recovery.group import QuorumGroup


@pytest.fixture
def quorum():
    group = QuorumGroup("127.0.0.1")
    group.form("gloo", 1, 0, [group.info])
    yield group
    group.dissolve()
    AsyncMaxReduce.uses_default_group = (
        False  # else votes of this process's other tests would ask for a group that is gone
    )


def test_the_watchdog_leaves_the_process_alone(quorum):
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "2"


def test_what_has_no_nccl_is_not_aborted(quorum):
    on_gpu.abort()
    assert dist.is_initialized()  # the training thread still asks it
    total = torch.ones(2)
    dist.all_reduce(total)
    assert total.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("name", "aborted"), [("nccl", 1), ("nccl2", 1), ("gloo", 0)])
def test_every_implementation_of_nccl_is_aborted(monkeypatch, name, aborted):
    """The group is a stand-in: there is no GPU here. From torch 2.15 on the backend of ``nccl`` has another name."""
    calls = []
    backend = SimpleNamespace(name=lambda: name, abort=lambda: calls.append("abort"))

    class Group:
        def _get_backend(self, _: torch.device) -> object:
            return backend

    world = SimpleNamespace(pg_map={Group(): None})
    monkeypatch.setattr(on_gpu.distributed_c10d, "_world", world)
    on_gpu.abort()
    assert calls == ["abort"] * aborted


@pytest.mark.parametrize(("given", "used"), [
    ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl-legacy"),
    ("nccl", "nccl-legacy"),
    ("cpu:gloo,cuda:nccl-legacy", "cpu:gloo,cuda:nccl-legacy"),
    ("nccl2", "nccl2"),  # who names the other implementation wants it
    ("gloo", "gloo"),
])  # fmt: skip
def test_nccl_is_the_one_whose_watchdog_is_controlled(monkeypatch, given, used):
    installed = on_gpu.watched(given)
    assert installed == (used if hasattr(dist, "gather_single") else given)  # torch 2.15 has both
    monkeypatch.setattr(dist, "is_backend_available", lambda _: True)
    assert on_gpu.watched(given) == used
    monkeypatch.setattr(dist, "is_backend_available", lambda _: False)
    assert on_gpu.watched(given) == given


def test_a_cpus_collectives_raise_their_errors_themselves():
    assert on_gpu.is_whole(torch.device("cpu"))


@pytest.mark.parametrize("error", [None, RuntimeError("NCCL communicator was aborted on rank 0.")])
def test_a_group_that_was_aborted_is_known_after_the_gpu_has_ended(monkeypatch, error):
    """The stream and the group are stand-ins: there is no GPU here."""
    calls = []

    def all_reduce(_: torch.Tensor) -> None:
        calls.append("all_reduce")
        if error is not None:
            raise error

    stream = SimpleNamespace(synchronize=lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.empty(1))
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    assert on_gpu.is_whole(torch.device("cuda", 0)) is (error is None)
    assert calls == ["synchronize", "all_reduce"]
