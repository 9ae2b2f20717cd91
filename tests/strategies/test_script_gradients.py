# SPDX-License-Identifier: Apache-2.0
"""A script's ``clip_grad_norm_`` and ``grad_norm`` are replaced wherever it has them, for its module, and given back."""

import sys

import pytest
import torch
from lightning.pytorch import utilities
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.nn.utils import clip_grad, clip_grad_norm_

from lightning_sagemaker.strategies.script_gradients import ScriptGradients


class Module(nn.Linear):
    """Of this file, which has the function under a name of its own."""


@pytest.fixture
def calls():
    return []


@pytest.fixture
def clipping(calls):
    module = Module(2, 2)

    class Gradients:
        def clip_norm(self, parameters, max_norm, norm_type):
            calls.append((parameters, max_norm, norm_type))
            return torch.tensor(float("nan"))

        def grad_norms(self, parameters, norm_type):
            return torch.tensor([3.0, float("nan")])

    clipping = ScriptGradients(Gradients(), module, [])
    yield module
    clipping.restore()
    assert (
        len({nn.utils.clip_grad_norm_, clip_grad.clip_grad_norm_, vars(sys.modules[__name__])["clip_grad_norm_"]}) == 1
    )
    assert nn.utils.clip_grad_norm_.__module__ == clip_grad.__name__


def test_parameters_of_the_module_are_clipped_together(clipping, calls):
    assert clip_grad_norm_(clipping.parameters(), 1).isnan()
    nn.utils.clip_grad_norm_(clipping.weight, 2.0, norm_type=1)
    clip_grad.clip_grad_norm_([clipping.bias], max_norm=3, foreach=True)
    assert [(len(parameters), *rest) for parameters, *rest in calls] == [(2, 1.0, 2.0), (1, 2.0, 1.0), (1, 3.0, 2.0)]
    with pytest.raises(RuntimeError, match="norm of the gradients is nan, and error_if_nonfinite"):
        clip_grad_norm_(clipping.parameters(), 1, error_if_nonfinite=True)


def test_norms_are_those_of_all_stages(clipping):
    assert {name: float(norm) for name, norm in grad_norm(clipping, 2).items()} == {
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
        grad_norm(clipping, 0)


def test_others_are_clipped_by_torch(clipping, calls):
    other = nn.Linear(2, 1, bias=False)
    other.weight.grad = torch.tensor([[3.0, 4.0]])
    assert float(clip_grad_norm_(other.parameters(), 1.0)) == 5
    assert torch.allclose(other.weight.grad, torch.tensor([[0.6, 0.8]]), atol=1e-5)
    assert not calls
