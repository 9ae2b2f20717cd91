# SPDX-License-Identifier: Apache-2.0
"""A script's ``grad_norm`` is replaced as ``clip_grad_norm_`` is, and given back."""

import sys

import pytest
import torch
from lightning.pytorch import utilities
from lightning.pytorch.utilities import grad_norm
from torch import nn

from lightning_sagemaker.strategies.script_gradients import ScriptGradients


@pytest.fixture
def module():
    class Pipeline:
        def grad_norms(self, parameters, norm_type):
            return torch.tensor([3.0, float("nan")])

    module, theirs = nn.Linear(2, 2), grad_norm
    functions = ScriptGradients(Pipeline(), module)
    yield module
    functions.restore()
    assert {utilities.grad_norm, vars(sys.modules[__name__])["grad_norm"]} == {theirs}


def test_norms_are_those_of_all_stages(module):
    assert {name: float(norm) for name, norm in grad_norm(module, 2).items()} == {
        "grad_2.0_norm/weight": 3,
        "grad_2.0_norm_total": 3,
    }
    other = nn.Linear(1, 1, bias=False)
    other.weight.grad = torch.tensor([[4.0]])
    assert {name: float(norm) for name, norm in utilities.grad_norm(other, "inf").items()} == {
        "grad_inf_norm/weight": 4,
        "grad_inf_norm_total": 4,
    }
    with pytest.raises(ValueError, match="positive"):
        grad_norm(module, 0)
