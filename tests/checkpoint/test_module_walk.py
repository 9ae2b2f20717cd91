# SPDX-License-Identifier: Apache-2.0
"""Names, objects and their order are torch's own."""

import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertModel

from lightning_sagemaker.checkpoint.module_walk import ModuleWalk, named_buffers, named_modules, named_parameters


class Tied(nn.Module):
    """A module, a parameter and a buffer that are reached twice, and some that are None."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.parts = nn.ModuleList([self.norm, nn.Sequential(nn.Linear(3, 3, bias=False), self.norm), nn.ReLU()])
        self.weight = self.parts[1][0].weight
        self.register_buffer("mean", self.norm.running_mean)
        self.register_buffer("nothing", None)
        self.gone = nn.Linear(2, 2)
        self.gone = None


MODULES = [Tied, nn.Identity, lambda: AlbertModel(AlbertConfig(hidden_size=24, num_attention_heads=2, vocab_size=9))]


@pytest.mark.parametrize("make", MODULES)
def test_it_is_as_torchs(make):
    module = make()
    children = named_modules(module)
    for found, expected in (
        (children, module.named_modules()),
        (named_parameters(children), module.named_parameters()),
        (named_buffers(children), module.named_buffers()),
    ):
        assert [(name, id(one)) for name, one in found] == [(name, id(one)) for name, one in expected]


def test_a_compiled_module_has_its_names():
    module = torch.compile(nn.Linear(2, 2))
    assert [name for name, _ in named_parameters(named_modules(module))] == ["_orig_mod.weight", "_orig_mod.bias"]


def test_a_walk_follows_the_structure():
    module = nn.Module()
    module.a, module.b = nn.Sequential(), nn.ReLU()
    walk = ModuleWalk(module)

    def check(*names):
        children, parameters = walk.look()
        assert [name for name, _ in children] == list(names)
        assert [*map(id, parameters)] == [*map(id, module.parameters())]
        assert walk.look()[0] is children

    check("", "a", "b")
    module.a.add_module("b", module.b)
    del module.b  # the same modules in the same order, and the same keys
    check("", "a", "a.b")
    module.c = module._modules.pop("a")
    check("", "c", "c.b")
    module.c = nn.Linear(2, 2)
    check("", "c")
    module.c.weight = nn.Parameter(module.c.weight.detach())
    module.c.bias = module.d = None
    check("", "c")
    module.d = module.c.weight
    check("", "c")
