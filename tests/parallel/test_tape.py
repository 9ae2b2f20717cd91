# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from torch import nn

from lightning_sagemaker.parallel import tape
from lightning_sagemaker.parallel.tape import Tape


@pytest.fixture
def tight(monkeypatch):
    """Almost nothing stays in memory."""
    monkeypatch.setattr(tape, "_SMALL", 64)
    monkeypatch.setattr(tape, "_IN_USE", 512)


def made(make):
    """What ``make`` returns, as always; and what a tape makes of each tensor afterwards."""
    torch.manual_seed(5)
    expected, after = make(), torch.rand(1)
    torch.manual_seed(5)
    recorded = Tape()
    with recorded:
        tensors = make()
    assert torch.equal(torch.rand(1), after)  # no number more or less was drawn
    refs = [recorded.ref(tensor) for tensor in tensors]
    del tensors
    return expected, [recorded.value(ref) for ref in refs], recorded


def several():
    generator = torch.Generator().manual_seed(3)
    one = torch.empty(40, 40)
    nn.init.trunc_normal_(one, std=0.02)  # asks for values while it draws
    other = nn.init.orthogonal_(torch.empty(30, 30))
    third = torch.randn(50, generator=generator) * one.sum()
    third[3:5] = 0
    one.mul_(2)
    return [one, other, third, other[2:4], torch.rand(20, 20).t(), nn.init.normal_(torch.empty(9), generator=generator)]


def test_each_tensor_is_made_again_with_the_same_bits():
    expected, found, _ = made(several)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert all(one.stride() == other.stride() for one, other in zip(expected, found, strict=True))


def test_what_was_emptied_has_its_values_when_it_is_used_again(tight):
    expected, found, _ = made(several)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    recorded = Tape()
    with recorded:
        first = torch.randn(100)
        copy = first.clone()
        assert not torch.randn(1000).isnan().any()
        assert torch.equal(first, copy)
        for _ in range(4):
            torch.randn(1000)
    assert first.untyped_storage().nbytes() == 0
    recorded.fill_all()
    assert torch.equal(first, copy)


def test_values_from_elsewhere_are_those_of_then(tight):
    outside, array = torch.arange(50.0), np.ones(40, np.float32)

    def make():
        inside = outside * 2
        shared = torch.from_numpy(array)
        result = [inside, shared + 1]
        outside.add_(0)
        torch.randn(1000)
        return result

    _, found, recorded = made(make)
    outside.fill_(-1)  # after the end
    assert torch.equal(found[0], torch.arange(50.0) * 2)
    assert torch.equal(found[1], torch.full((40,), 2.0))
    with recorded:
        given = torch.from_numpy(array)
        given.mul_(3)
    value = recorded.value(recorded.ref(given))
    value.fill_(0)
    assert array.tolist() == [3.0] * 40  # a copy was given


def test_an_array_of_numpy_keeps_its_memory(tight):
    with Tape():
        tensor = torch.randn(100)
        array = tensor.numpy()
        before = array.copy()
        for _ in range(4):
            torch.randn(1000)
        assert (array == before).all()


def test_what_was_overwritten_is_not_made_again(monkeypatch):
    runs = []
    run_again = Tape._run_again
    monkeypatch.setattr(
        Tape, "_run_again", lambda self, operation, made: runs.append(1) or run_again(self, operation, made)
    )
    recorded = Tape()
    with recorded:
        weight = nn.Linear(30, 30).weight.data
        for _ in range(5):
            weight.normal_()
    assert recorded.value(recorded.ref(weight)).shape == (30, 30)
    assert len(runs) == 2  # its memory, and the last values
