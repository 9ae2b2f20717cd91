# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import transformers
from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.optimizer_scope import Scope, check_scope, scope_of


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of You et al., "Large Batch Optimization for Deep Learning" (2020), without weight decay.

    With ``max_norm``, as implementations have it, the gradients of all parameters are first scaled by their common norm.
    """

    def __init__(self, params, lr=0.01, max_norm=None):
        super().__init__(params, {"lr": lr, "max_norm": max_norm})

    def step(self, closure=None):
        for group in self.param_groups:
            gradients = [parameter.grad for parameter in group["params"]]
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            scale = 1.0 if group["max_norm"] is None else max(1.0, float(norm / group["max_norm"]))
            for parameter in group["params"]:
                state = self.state[parameter]
                first = state["first"] = state.get("first", 0) * 0.9 + parameter.grad / scale * 0.1
                second = state["second"] = state.get("second", 0) * 0.999 + (parameter.grad / scale) ** 2 * 0.001
                update = first / (second.sqrt() + 1e-6)
                parameter.data -= group["lr"] * parameter.norm() / update.norm() * update


MATRIX = ("Adafactor", "Muon")
ELSEWISE = ("LBFGS", "SparseAdam", "Optimizer")
ELEMENTWISE = [
    name
    for name in sorted(vars(torch.optim))
    if isinstance(getattr(torch.optim, name), type)
    and issubclass(getattr(torch.optim, name), torch.optim.Optimizer)
    and name not in (*MATRIX, *ELSEWISE)
]


def weights():
    return [nn.Parameter(torch.ones(2, 2))]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_optimizers_of_torch_update_each_number_by_itself(name):
    assert scope_of(getattr(torch.optim, name)(weights(), lr=0.01)) is Scope.NUMBER


def test_options_are_those_of_the_optimizer():
    assert scope_of(torch.optim.SGD(weights(), lr=0.0, momentum=0.9, nesterov=True)) is Scope.NUMBER
    assert scope_of(torch.optim.AdamW(weights(), lr=0.01, amsgrad=True, foreach=True)) is Scope.NUMBER


@pytest.mark.parametrize("name", [name for name in MATRIX if hasattr(torch.optim, name)])
def test_some_look_at_the_whole_matrix(name):
    assert scope_of(getattr(torch.optim, name)(weights())) is Scope.MATRIX


def test_other_libraries_optimizers_are_tried_too():
    adafactor = transformers.optimization.Adafactor(weights(), lr=0.01, relative_step=False)
    assert scope_of(adafactor) is Scope.MATRIX
    assert scope_of(Lamb(weights())) is Scope.MATRIX
    assert scope_of(Lamb(weights(), max_norm=1.0)) is Scope.MODEL


def test_lbfgs_looks_at_the_whole_model():
    assert scope_of(torch.optim.LBFGS(weights())) is Scope.MODEL


def test_nothing_is_claimed_of_what_cannot_be_tried():
    class Odd(torch.optim.SGD):
        def __init__(self, model):
            super().__init__(model.parameters(), lr=0.1)

    assert scope_of(Odd(nn.Linear(2, 2))) is None
    assert scope_of(torch.optim.SparseAdam(weights())) is None


def test_trying_changes_neither_random_numbers_nor_the_optimizer():
    (parameter,) = parameters = weights()
    optimizer = torch.optim.Adam(parameters)
    before = torch.get_rng_state()
    scope_of(optimizer)
    assert torch.equal(torch.get_rng_state(), before)
    assert not optimizer.state
    assert torch.equal(parameter, torch.ones(2, 2))


def test_what_a_process_with_a_part_cannot_do_is_refused():
    check_scope(torch.optim.AdamW(weights()), shares_matrices=True)
    check_scope(Lamb(weights()), shares_matrices=False)
    with pytest.raises(ParallelConfigError, match="Lamb was chosen with tensor_parallel_degree.*HINT"):
        check_scope(Lamb(weights()), shares_matrices=True)
    with pytest.raises(ParallelConfigError, match="Lamb was chosen for a partitioned model.*HINT"):
        check_scope(Lamb(weights(), max_norm=1.0), shares_matrices=False)
