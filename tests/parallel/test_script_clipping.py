# SPDX-License-Identifier: Apache-2.0
"""``clip_grad_norm_`` is replaced wherever a script or a library has it, for one module, and given back."""

import sys
import types

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad, clip_grad_norm_

from lightning_sagemaker.parallel.script_clipping import ScriptClipping

ELSEWHERE = "helpers_of_a_script"


@pytest.fixture
def calls():
    return []


@pytest.fixture
def clipped(calls, monkeypatch):
    class Gradients:
        def clip_norm(self, parameters, max_norm, norm_type):
            calls.append((parameters, max_norm, norm_type))
            return torch.tensor(float("nan"))

    helpers = types.ModuleType(ELSEWHERE)
    helpers.clip = clip_grad_norm_
    monkeypatch.setitem(sys.modules, ELSEWHERE, helpers)
    module = nn.Linear(2, 2)
    clipping = ScriptClipping(Gradients(), module)
    yield module
    clipping.restore()
    here = vars(sys.modules[__name__])["clip_grad_norm_"]
    assert len({nn.utils.clip_grad_norm_, clip_grad.clip_grad_norm_, here, helpers.clip}) == 1
    assert nn.utils.clip_grad_norm_.__module__ == clip_grad.__name__


def test_parameters_of_the_module_are_clipped_together(clipped, calls):
    assert clip_grad_norm_(clipped.parameters(), 1).isnan()
    nn.utils.clip_grad_norm_(clipped.weight, 2.0, norm_type=1)
    clip_grad.clip_grad_norm_([clipped.bias], max_norm=3, foreach=True)
    sys.modules[ELSEWHERE].clip([clipped.bias], 4)
    clip_grad_norm_([], 5)  # local parameters of a stage that has none
    assert [(len(parameters), *rest) for parameters, *rest in calls] == [
        (2, 1.0, 2.0),
        (1, 2.0, 1.0),
        (1, 3.0, 2.0),
        (1, 4.0, 2.0),
        (0, 5.0, 2.0),
    ]
    with pytest.raises(RuntimeError, match="norm of the gradients is nan, and error_if_nonfinite"):
        clip_grad_norm_(clipped.parameters(), 1, error_if_nonfinite=True)


def test_others_are_clipped_by_torch(clipped, calls):
    other = nn.Linear(2, 1, bias=False)
    other.weight.grad = torch.tensor([[3.0, 4.0]])
    assert float(clip_grad_norm_(other.parameters(), 1.0)) == 5
    assert torch.allclose(other.weight.grad, torch.tensor([[0.6, 0.8]]), atol=1e-5)
    assert not calls
