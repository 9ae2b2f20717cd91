# SPDX-License-Identifier: Apache-2.0
"""Gradients of what each rank has complete and uses for its own heads only."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lightning_sagemaker.parallel.plans import SUMMED, SUMMED_TAIL
from lightning_sagemaker.parallel.tensor import WITH_SUMS


@pytest.fixture(autouse=True)
def two_equal_ranks(monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group=None: tensor.mul_(2))


@pytest.mark.parametrize("is_viewed", [False, True], ids=["parameter", "view of FSDP"])
def test_gradients_of_parameters_are_summed(is_viewed):
    """FSDP, with its original parameters, has views of them as attributes while a module runs."""
    norm = nn.LayerNorm(4)
    norm.forward = WITH_SUMS[SUMMED](nn.ModuleDict({"norm": norm}), "norm", None)
    weight = norm.weight
    if is_viewed:
        vars(norm)["weight"] = weight.view(4)
    value = torch.arange(8.0).view(2, 4)
    norm(value).square().sum().backward()
    found = weight.grad
    plain = nn.LayerNorm(4)
    plain(value).square().sum().backward()
    assert found.tolist() == pytest.approx((2 * plain.weight.grad).tolist())
    assert norm.bias.grad.tolist() == pytest.approx((2 * plain.bias.grad).tolist())
    assert ("weight" in vars(norm)) == is_viewed
    assert isinstance(norm._parameters["weight"], nn.Parameter)


def test_gradients_of_the_end_of_an_output_are_summed():
    attention = nn.ModuleDict({"project": nn.Linear(2, 5)})
    attention.qk_rope_head_dim = 2
    linear = attention["project"]
    linear.forward = WITH_SUMS[SUMMED_TAIL](nn.ModuleDict({"attention": attention}), "attention.project", None)
    linear(torch.ones(1, 2)).sum().backward()
    assert linear.bias.grad.tolist() == [1, 1, 1, 2, 2]
