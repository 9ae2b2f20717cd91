# SPDX-License-Identifier: Apache-2.0
"""Pruned parameters keep their masks in a resumed run. Lightning's callback is in tests/chaos/test_callbacks.py."""

import copy
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.utils import prune

from lightning_sagemaker.checkpoint.pruned_weights import prune_as, pruned_weights


def _model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 2)))


def _trainer(model):
    return SimpleNamespace(lightning_module=model, callbacks=[])


def test_a_module_is_pruned_as_another_one():
    model, other = _model(), _model()
    prune.random_unstructured(model[0], "weight", 0.5)
    prune.ln_structured(model[1][0], "weight", 1, n=2, dim=0)
    with torch.no_grad():
        model[0].weight_orig.mul_(2)  # as a step does: the product is that of the last forward pass
    prune_as(_trainer(other), copy.deepcopy(pruned_weights(_trainer(model))))
    prune_as(_trainer(other), pruned_weights(_trainer(model)))  # where it is pruned already, the values alone are set
    assert list(other.state_dict()) == list(model.state_dict())
    for one, copied in ((model[0], other[0]), (model[1][0], other[1][0])):
        for name in ("weight", "weight_orig", "weight_mask"):
            assert torch.equal(getattr(one, name), getattr(copied, name))
        prune.l1_unstructured(one, "weight", 1)
        prune.l1_unstructured(copied, "weight", 1)
        assert torch.equal(one.weight_mask, copied.weight_mask)
    x = torch.rand(5, 4)
    assert torch.equal(model(x), other(x))


def test_names_that_look_pruned_are_left_alone():
    model = _model()
    model.register_parameter("scale_orig", nn.Parameter(torch.ones(2)))
    model.register_buffer("scale_mask", torch.ones(2))
    assert pruned_weights(_trainer(model)) == {"weights": {}, "shared": []}
