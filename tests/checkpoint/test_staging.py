# SPDX-License-Identifier: Apache-2.0
"""Copies of a state: their values, their memory, and when what they consist of has changed."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from lightning_sagemaker.checkpoint.staging import Staging


def state(value: float, size: int = 3, rate: float = 0.1) -> dict:
    return {"weights": {"w": torch.full((size,), value)}, "groups": [{"lr": rate, "params": ["w"]}]}


def test_a_copy_stays_as_it_was_in_the_same_memory():
    staging, first = Staging(), state(1.0)
    copied = staging.copy(first)
    first["weights"]["w"].fill_(2.0)
    assert copied["weights"]["w"].tolist() == [1.0] * 3
    place = copied["weights"]["w"].data_ptr()
    again = staging.copy(first)
    assert again["weights"]["w"].data_ptr() == place
    assert again["weights"]["w"].tolist() == [2.0] * 3


def test_only_another_structure_is_another_version():
    staging = Staging()
    staging.copy(state(1.0))
    version = staging.version
    assert staging.copy(state(2.0, rate=0.2))["groups"][0]["lr"] == 0.2
    assert staging.version == version
    assert staging.copy(state(2.0, size=4))["weights"]["w"].shape == (4,)
    assert staging.version == version + 1
    staging.copy({**state(2.0, size=4), "more": 1})
    assert staging.version == version + 2


@pytest.fixture
def no_gpu_mesh():
    """A mesh of GPUs that are not there: what is moved to them raises an error."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield DeviceMesh("cuda", [0])
    dist.destroy_process_group()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU")
def test_a_copy_of_a_shard_is_in_cpu_memory_whatever_its_mesh(no_gpu_mesh):
    """On a GPU a copy that went back there was one of memory that had not been written yet."""
    like = DTensor.from_local(torch.empty(4, device="meta"), no_gpu_mesh, [Shard(0)], run_check=False)
    shard = DTensor(torch.arange(4.0), like._spec, requires_grad=False)
    copied = Staging().copy({"w": shard})["w"]
    assert copied.placements == shard.placements
    shard.to_local().fill_(-1.0)
    assert copied.to_local().tolist() == [0.0, 1.0, 2.0, 3.0]
