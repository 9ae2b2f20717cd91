# SPDX-License-Identifier: Apache-2.0
"""Weights that a process can go back to."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from lightning_sagemaker.checkpoint.own_weights import OwnWeights


def test_values_tell_wherever_they_were_changed():
    net = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 1))
    own, weight = OwnWeights([net]), net[0].weight.detach().clone()
    assert not own.are_exchanged()
    net[0].weight.data.mul_(2)  # no version counter has changed
    assert own.are_exchanged()
    own.put_back()
    assert not own.are_exchanged()
    assert torch.equal(net[0].weight, weight)


def test_weights_that_are_not_finite_are_their_own():
    net = nn.Linear(2, 2)
    nn.init.constant_(net.weight, float("nan"))
    assert not OwnWeights([net]).are_exchanged()


def test_the_memory_is_the_old_one():
    """Another object may have it: gradients' hooks, a callback that has exchanged addresses."""
    net, other = nn.Linear(2, 2), torch.zeros(2, 2)
    address, own = net.weight.data_ptr(), OwnWeights([net])
    net.weight.data = other
    own.put_back()
    assert net.weight.data_ptr() == address
    assert not other.any()


def test_sharded_weights_are_compared_but_not_copied(group_of_one):
    net = nn.Linear(2, 2, bias=False)
    net.weight = nn.Parameter(distribute_tensor(net.weight.data, init_device_mesh("cpu", (1,))))
    own = OwnWeights([net])
    net.weight.data.to_local().zero_()
    assert (own.are_exchanged(), own.are_kept) == (True, False)


def test_a_converted_module_has_the_same_weights():
    net = nn.Linear(4, 4)
    own = OwnWeights([net])
    net.to(torch.bfloat16)
    assert not own.are_exchanged()
    nn.init.zeros_(net.weight)
    own.load()
    assert not own.are_exchanged()
    assert net.weight.dtype == torch.bfloat16
