# SPDX-License-Identifier: Apache-2.0
"""What blocks keep for the backward pass."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from lightning_sagemaker.parallel import activations


class Block(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x.exp().exp()


def run(**options):
    """How often the block ran, and how many of its tensors were packed away."""
    block, x = Block(), torch.ones(3, requires_grad=True)
    undo = activations.save_memory([block], **{"recompute": False, "offload": False, "pin": False, **options})
    block(x).sum().backward()
    assert torch.allclose(x.grad, x.detach().exp() * x.detach().exp().exp())
    undo.restore()
    assert "forward" not in vars(block)
    return block.calls


def test_nothing_is_replaced_unless_asked():
    assert run() == 1


def test_recomputed_blocks_run_twice():
    assert run(recompute=True) == 2


@pytest.mark.parametrize(("recompute", "kept"), [(False, 2), (True, 1)])
def test_what_is_kept_goes_to_the_host(monkeypatch, recompute, kept):
    """On a processor the copy is the tensor itself, so the hooks that make it are replaced by ones that count."""
    packed = []

    def counting(pin_memory):
        assert pin_memory is False
        return saved_tensors_hooks(lambda tensor: packed.append(tensor) or tensor, lambda tensor: tensor)

    monkeypatch.setattr(activations, "save_on_cpu", counting)
    run(recompute=recompute, offload=True)
    assert sum(tensor.numel() > 0 for tensor in packed) == kept  # torch 2.5 keeps an empty one as well
