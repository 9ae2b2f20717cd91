# SPDX-License-Identifier: Apache-2.0
"""What a replacement gets of a loop with Fabric, besides what the objects in ``state`` have in their own states."""

from types import SimpleNamespace

import torch
from lightning.fabric import Fabric
from torch import nn

from lightning_sagemaker.callbacks.fabric_state import FabricState
from lightning_sagemaker.recovery.buffers import SharedBuffers
from lightning_sagemaker.recovery.fabric_held import FabricHeld


def held_by(folder):
    fabric = Fabric(accelerator="cpu", devices=1)
    body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model, optimizer = fabric.setup(body, torch.optim.SGD(body.parameters(), 0.1))
    state = {"model": model, "optimizer": optimizer, "noise": torch.Generator().manual_seed(1)}
    strategy = SimpleNamespace(precision=fabric.strategy.precision, parameters=[*body.parameters()])
    saved = FabricState(fabric, folder, state, 2, True)
    return body, state, FabricHeld(strategy, state, saved, SharedBuffers(lambda: [body]))


def test_a_replacement_has_the_layers_frozen_that_the_others_have(tmp_path):
    body, state, held = held_by(tmp_path / "one")
    body[0].requires_grad_(False)
    body[1].eval()
    torch.rand(3, generator=state["noise"])
    held.take((1, 0, 6), 5)
    other, taken, replacement = held_by(tmp_path / "other")
    noise = taken["noise"]
    assert replacement.take_over(held.all_of_it()) == ((1, 0, 6), 5)
    assert [one.requires_grad for one in other.parameters()] == [False, False, True, True]
    assert [one.training for one in (other, *other)] == [True, True, False]
    assert taken["noise"] is noise
    assert torch.equal(noise.get_state(), state["noise"].get_state())


def test_a_repeated_step_draws_the_same_from_a_generator(tmp_path):
    _, state, held = held_by(tmp_path)
    held.take((0, 0, 0), 5)
    drawn = torch.rand(3, generator=state["noise"])
    held.go_back()
    assert torch.equal(torch.rand(3, generator=state["noise"]), drawn)
