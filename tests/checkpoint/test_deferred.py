# SPDX-License-Identifier: Apache-2.0
"""Copies of optimizer states that are made before the next update, whatever kind of update it is."""

import itertools
import threading

import pytest
import torch

from lightning_sagemaker.checkpoint.deferred import DeferredCopies


def trained(kind: type[torch.optim.Optimizer]) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """A parameter with an optimizer that has made one update."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1)
    optimizer.step(closure_of(weight, optimizer))
    return weight, optimizer


def closure_of(weight, optimizer, before=lambda: None):
    def closure():
        before()
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    return closure


def states(optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]


def deferred_copies(optimizer) -> tuple[DeferredCopies, list[torch.Tensor], list[torch.Tensor]]:
    copies, sources = DeferredCopies(), states(optimizer)
    targets = [torch.zeros_like(source) for source in sources]
    for source, target in zip(sources, targets, strict=True):
        copies.add(source, target)
    copies.hold_updates([optimizer])
    return copies, [source.clone() for source in sources], targets


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *itertools.product([torch.optim.AdamW, torch.optim.Adagrad], ["no closure", "closure", "closure by name"]),
        *itertools.product([torch.optim.LBFGS], ["closure", "closure by name"]),
    ],
)
def test_an_update_waits_until_the_states_are_copied(kind, how):
    weight, optimizer = trained(kind)
    copies, before, targets = deferred_copies(optimizer)
    in_pass = threading.Event()
    timer = threading.Timer(0.2, copies.run)
    timer.start()
    closure = closure_of(weight, optimizer, in_pass.set)
    if how == "no closure":
        closure()
        optimizer.step()
    elif how == "closure":
        optimizer.step(closure)
    else:
        optimizer.step(closure=closure)
    timer.join()
    assert in_pass.is_set()
    assert copies.waited > 0.05
    for copied, expected in zip(targets, before, strict=True):
        assert torch.equal(copied, expected)
    assert any(not torch.equal(now, then) for now, then in zip(states(optimizer), before, strict=True))
    copies.release()


def test_forward_and_backward_do_not_wait():
    weight, optimizer = trained(torch.optim.AdamW)
    copies, *_ = deferred_copies(optimizer)
    passed = threading.Event()
    thread = threading.Thread(target=lambda: optimizer.step(closure_of(weight, optimizer, passed.set)))
    thread.start()
    assert passed.wait(10)
    assert thread.is_alive()
    copies.run()
    thread.join(10)
    assert not thread.is_alive()


def test_a_state_that_is_changed_otherwise_is_an_error():
    _, optimizer = trained(torch.optim.AdamW)
    copies, *_ = deferred_copies(optimizer)
    states(optimizer)[1].zero_()
    with pytest.raises(
        RuntimeError, match=r"1 tensors of optimizer states were modified.*HINT: change them in on_before"
    ):
        copies.run()


def test_a_released_optimizer_has_no_hooks():
    _, optimizer = trained(torch.optim.AdamW)
    copies, *_ = deferred_copies(optimizer)
    copies.run()
    copies.release()
    assert not optimizer._optimizer_step_pre_hooks
