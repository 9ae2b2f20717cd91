# SPDX-License-Identifier: Apache-2.0
"""What a group sends, without a GPU: groups of the backend that torch has for such tests."""

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from lightning_sagemaker.collectives.devices import broadcast, device_for


@pytest.fixture
def group(request):
    dist.init_process_group(request.param, store=FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("group", "device"),
    [("fake", "cpu"), ("cpu:fake,cuda:fake", "cpu"), ("cuda:fake", "cuda:2")],
    indirect=["group"],
)
def test_a_group_of_a_gpus_engine_alone_sends_nothing_of_the_cpu(group, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert device_for() == torch.device(device)
    assert device_for(dist.group.WORLD) == torch.device(device)


@pytest.mark.parametrize("group", ["cuda:fake"], indirect=True)
def test_a_tensor_goes_by_way_of_a_device_that_the_group_sends(group, monkeypatch):
    monkeypatch.setattr("lightning_sagemaker.collectives.devices.device_for", lambda _: torch.device("meta"))
    sent = []
    monkeypatch.setattr(dist, "broadcast", lambda tensor, *_: sent.append(tensor.device.type))
    with pytest.raises(NotImplementedError):  # nothing comes back from there
        broadcast(torch.ones(2), 0)
    assert sent == ["meta"]
